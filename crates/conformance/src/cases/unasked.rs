//! Memory of which nobody asks whether it was used: entries change by stores (E4 of pgtable's model), and all else is as it is.

use super::Outcome;
use crate::ledger::Releasing;
use crate::platform::Platform;
use crate::space::{RO, RW, Space};
use flagstone_pgtable::{Error, Gather, Ops, UseUnasked};

const PAGES: usize = 6;

type Shared<'s, 'p, P> =
    Ops<'s, 'p, <P as Platform>::Host, <P as Platform>::Format, flagstone_pgtable::Shared>;

type Gathering<'s, 'p, P> = Gather<
    's,
    'p,
    <P as Platform>::Host,
    <P as Platform>::Format,
    flagstone_pgtable::Shared,
    UseUnasked<Releasing<'s, P>>,
>;

/// As [`Space::gathered`], for an owner who does not ask.
fn gathered<'p, P: Platform>(
    space: &Space<'p, P>,
    change: impl for<'s> FnOnce(&Shared<'s, 'p, P>, &mut Gathering<'s, 'p, P>) -> Result<(), Error>,
) {
    let ops = space.table().shared();
    let mut gather = ops.gather(UseUnasked(space.releasing()));
    assert_eq!(change(&ops, &mut gather), Ok(()));
    gather.finish();
}

/// Each CPU has pages of its own and some that all use.
pub(super) fn changes<P: Platform>(p: &P) -> Outcome {
    let Some(mut space) = Space::new(p, 256) else {
        return Outcome::Skipped("no memory for a page table");
    };
    p.ask_use(false);
    space.ledger.ask_nothing();
    space.run(p.cpus().min(4), &|cpu| {
        let first = space.at(cpu * PAGES);
        let range = Space::<P>::pages(first, PAGES);
        let others = space.at((cpu + 1) % 4 * PAGES);
        for _ in 0..3 {
            for n in 0..PAGES {
                space.map_new(space.at(cpu * PAGES + n), RW);
            }
            for n in 0..PAGES / 2 {
                assert!(space.write(space.at(cpu * PAGES + n)).is_ok());
                let _ = space.write(others);
            }
            gathered(&space, |ops, gather| ops.protect(range, RO, gather));
            for n in 0..PAGES {
                let at = space.at(cpu * PAGES + n);
                assert!(space.write(at).is_err(), "a store after protection");
                assert!(space.read(at).is_ok());
            }
            let _ = space.read(others);
            gathered(&space, |ops, gather| ops.unmap(range, gather));
            space.assert_refused(first);
        }
    });
    // Nobody asks any more either: what is left in the books is gone with the table.
    space.end(&[Space::<P>::pages(p.window(), 4 * PAGES)]);
    p.check_memory();
    p.ask_use(true);
    Outcome::Passed
}
