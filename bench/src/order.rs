//! Free lists in order and in random order, in caches of arrays and in caches of lists.

use crate::caches::{self, Objects};
use crate::{BATCH_SIZES, Error, Print, Scale, loops, processors};
use flagstone_malloc::process::{ArrayForm, Restartable, TransactionList};

/// The two forms of cache, each with and without randomisation.
pub(crate) const SUBJECTS: &[&str] = &["array", "array random", "list", "list random"];

/// `KIND/SIZE/alloc|free|both` for kinds `fresh`, `again` and `written`, and `KIND/SIZE/pair`.
pub(crate) fn measure(
    kind: &str,
    subject: &str,
    scale: &Scale,
    print: &mut Print<'_>,
) -> Result<(), Error> {
    let random = subject.ends_with("random");
    if subject.starts_with("list") {
        with::<TransactionList>(kind, random, scale, print)
    } else {
        with::<Restartable>(kind, random, scale, print)
    }
}

fn with<F: ArrayForm>(
    kind: &str,
    random: bool,
    scale: &Scale,
    print: &mut Print<'_>,
) -> Result<(), Error> {
    processors::stay_on_first()?;
    let caches = caches::bring_up::<F>(caches::SHIPPED)?;
    caches.improvements().set_random_freelist(random);
    let how = loops::How {
        touch: kind == "written",
        cool: kind != "again",
    };
    for &size in BATCH_SIZES {
        let objects = Objects::new(caches, size)?;
        loops::batch(&objects, size, how, scale).print(kind, size, print);
        if kind == "again" {
            print(
                format!("{kind}/{size}/pair"),
                loops::pair(&objects, size, scale.slice),
            );
        }
        objects.destroy();
    }
    Ok(())
}
