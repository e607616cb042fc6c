//! The sets of `kmalloc` classes besides the ordinary one: objects for devices that reach the DMA zone only, and objects that a
//! shrinker can give back, whose pages are kept apart from those that stay.
//!
//! A set is made when it is wanted and lives for ever. Its caches are published one by one, so that requests
//! may come meanwhile; until then requests for DMA memory are served by whole pages, and reclaimable ones by the ordinary set.

use core::fmt::{self, Write};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};
use flagstone_host::Host;
use flagstone_types::{AllocError, Gfp};

use crate::cache::{Cache, UserCopy};
use crate::caches::{CacheParams, Caches};

/// Which objects a set of classes is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KmallocSet {
    /// Requests with [`Gfp::RECLAIMABLE`].
    Reclaimable,
    /// Requests with [`Gfp::DMA`], whatever else they say.
    Dma,
}

impl KmallocSet {
    /// How many sets there are besides the ordinary one.
    pub(crate) const COUNT: usize = 2;

    /// The set that a request asks for, if it is not the ordinary one.
    #[inline]
    pub(crate) const fn of(gfp: Gfp) -> Option<Self> {
        if gfp.contains(Gfp::DMA) {
            Some(Self::Dma)
        } else if gfp.contains(Gfp::RECLAIMABLE) {
            Some(Self::Reclaimable)
        } else {
            None
        }
    }
}

/// The caches of the sets, by set and class.
pub(crate) struct SetTable<H: Host> {
    /// `KmallocSet::COUNT * classes` of them, null where there is none yet.
    entries: NonNull<AtomicPtr<Cache<H>>>,
    classes: usize,
}

impl<H: Host> SetTable<H> {
    pub(crate) fn new(host: &H, classes: usize) -> Result<Self, AllocError> {
        let layout =
            core::alloc::Layout::array::<AtomicPtr<Cache<H>>>(KmallocSet::COUNT * classes.max(1))
                .map_err(|_| AllocError::TooLarge)?;
        Ok(Self {
            entries: host.boot_alloc(layout)?.cast(),
            classes,
        })
    }

    fn entry(&self, set: KmallocSet, class: usize) -> Option<&AtomicPtr<Cache<H>>> {
        // SAFETY: in bounds of zeroed boot memory, which lives for ever (host M3); null pointers are zero.
        (class < self.classes).then(|| unsafe {
            self.entries
                .add(set as usize * self.classes + class)
                .as_ref()
        })
    }

    /// The cache of a class of a set, if it was made.
    pub(crate) fn cache(&self, set: KmallocSet, class: usize) -> Option<&Cache<H>> {
        // SAFETY: published caches live for ever.
        unsafe { self.entry(set, class)?.load(Ordering::Acquire).as_ref() }
    }
}

/// Room for a class's name; what is too long is cut.
struct NameText {
    bytes: [u8; 32],
    len: usize,
}

impl Write for NameText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            let Some(room) = self.bytes.get_mut(self.len..self.len + c.len_utf8()) else {
                break;
            };
            self.len += c.encode_utf8(room).len();
        }
        Ok(())
    }
}

impl NameText {
    fn new(text: fmt::Arguments<'_>) -> Self {
        let mut name = Self {
            bytes: [0; 32],
            len: 0,
        };
        let _ = name.write_fmt(text); // writing to memory does not fail
        name
    }

    fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len]).unwrap_or("kmalloc")
    }
}

impl<H: Host> Caches<H> {
    /// Makes the caches of a set, those that are missing. Called with no lock held.
    ///
    /// # Errors
    /// As [`Caches::create`]; the classes that were made serve from now on, and a further call makes the others.
    pub fn make_kmalloc_set(&self, set: KmallocSet) -> Result<(), AllocError> {
        for (number, class) in self.kmalloc.classes().iter().enumerate() {
            let Some(entry) = self.kmalloc.sets.entry(set, number) else {
                break;
            };
            if !entry.load(Ordering::Relaxed).is_null() {
                continue;
            }
            let rest = class.name.strip_prefix("kmalloc-").unwrap_or(class.name);
            let name = match set {
                KmallocSet::Dma => NameText::new(format_args!("dma-kmalloc-{rest}")),
                KmallocSet::Reclaimable => NameText::new(format_args!("kmalloc-rcl-{rest}")),
            };
            let mut params = CacheParams::new(name.as_str(), class.size, class.align);
            params.flags.no_merge = true;
            params.flags.dma = set == KmallocSet::Dma;
            params.flags.reclaimable = set == KmallocSet::Reclaimable;
            params.usercopy = UserCopy {
                offset: 0,
                size: class.size as u32,
            };
            let handle = self.create(&params)?;
            let cache = core::ptr::from_ref::<Cache<H>>(&handle).cast_mut();
            let published =
                entry.compare_exchange(null_mut(), cache, Ordering::Release, Ordering::Relaxed);
            if published.is_err() {
                // Somebody else made it meanwhile. This one is empty, so it can end.
                let _ = self.destroy(handle);
            }
            // A handle that is dropped leaves its cache alive for ever.
        }
        Ok(())
    }
}
