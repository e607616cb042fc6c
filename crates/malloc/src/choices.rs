//! Settings that the layers below carry out: what fails on purpose (`FLAGSTONE_INJECT`), where memory comes from (`FLAGSTONE_NUMA`).
//!
//! Applied once, when the heap is up and before the first allocation is handed out. A setting that can not be carried out is reported by name and ignored.

use core::alloc::Layout;
use core::fmt;

use flagstone_frames::FaultAttr;
use flagstone_host::{Level, Log, PageMap};
use flagstone_slab::{Caches, NumaPolicy};

use crate::process::Process;

/// Carries the settings out.
pub(crate) fn apply(caches: &Caches<Process>) {
    let host = caches.host();
    let settings = host.settings();
    if let Some(text) = settings.numa().filter(|text| !text.is_empty())
        && !place(caches, text)
    {
        ignored(
            "NUMA",
            format_args!(
                "local, preferred:NODES, bind:NODES or interleave:NODES with a node that exists"
            ),
        );
    }
    let points = settings.inject().unwrap_or_default().split(|b| *b == b';');
    for point in points.filter(|point| !point.is_empty()) {
        inject(caches, point);
    }
}

fn ignored(name: &str, wanted: fmt::Arguments<'_>) {
    Process::start().log(
        Level::Warning,
        format_args!("setting FLAGSTONE_{name} is not {wanted}, ignored"),
    );
}

fn place(caches: &Caches<Process>, text: &[u8]) -> bool {
    let Some(policy) = core::str::from_utf8(text).ok().and_then(NumaPolicy::parse) else {
        return false;
    };
    let Ok(place) = caches.host().boot_alloc(Layout::new::<NumaPolicy>()) else {
        return false;
    };
    // SAFETY: M3: room for a policy that nobody else has, as long as the process.
    let policy: &'static NumaPolicy = unsafe {
        let place = place.cast::<NumaPolicy>();
        place.write(policy);
        place.as_ref()
    };
    caches.place_all(policy).is_ok()
}

fn inject(caches: &Caches<Process>, text: &[u8]) {
    let text = core::str::from_utf8(text).unwrap_or_default();
    let (point, attributes) = text.split_once(':').unwrap_or((text, ""));
    let attr = match FaultAttr::parse(attributes) {
        Ok(attr) => attr,
        Err(bad) => {
            let point = point.escape_debug();
            return ignored("INJECT", format_args!("understood ({point}: {bad})"));
        }
    };
    match point {
        "failslab" => {
            if caches.set_failslab(Some(&attr)).is_err() {
                ignored("INJECT", format_args!("possible (failslab)"));
            }
        }
        "fail_page_alloc" => caches.frames().fail_page_alloc().arm(&attr),
        _ => ignored(
            "INJECT",
            format_args!("failslab:… or fail_page_alloc:… ({})", point.escape_debug()),
        ),
    }
}
