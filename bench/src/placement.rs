//! What the place of the free-object index costs: inside a free object, or elsewhere.
//!
//! Elsewhere is where it goes when nothing may be written into a free object, here because of a constructor that does
//! nothing. A new slab then calls it once for each object, which is in the figure: about a nanosecond for each allocation.

use crate::caches::{self, Objects};
use crate::{Error, Print, SHORT_SIZES, Scale, loops, processors};
use core::ptr::NonNull;
use flagstone_malloc::process::Restartable;
use flagstone_slab::Constructor;
use flagstone_slab::layout::IndexPlace;

/// Places of the index.
pub(crate) const SUBJECTS: &[&str] = &["in-object", "elsewhere"];

/// Constructs nothing (B8).
unsafe fn nothing(_: NonNull<u8>) {}

/// `placement/SIZE/alloc|free|both`, and `placement/SIZE/objects`: how many a slab has.
pub(crate) fn measure(subject: &str, scale: &Scale, print: &mut Print<'_>) -> Result<(), Error> {
    processors::stay_on_first()?;
    let inside = subject == "in-object";
    let caches = caches::bring_up::<Restartable>(caches::PUBLISHED)?;
    let how = loops::How {
        touch: false,
        cool: true,
    };
    for &size in SHORT_SIZES {
        let ctor = (!inside).then_some(nothing as Constructor);
        let objects = Objects::constructed(caches, size, ctor)?;
        let layout = *objects.cache().layout();
        // A small object has no room for the index of a slab of 64 KiB, whatever may be written into it.
        if inside == (layout.place == IndexPlace::InObject) {
            loops::batch(&objects, size, how, scale).print("placement", size, print);
            print(format!("placement/{size}/objects"), f64::from(layout.num));
        }
        objects.destroy();
    }
    Ok(())
}
