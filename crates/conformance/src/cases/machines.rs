//! What only some machines are: each is the workload that meets its peculiarity most, and what can be said of it alone.

use super::{Outcome, workloads};
use crate::op::Mix;
use crate::platform::{Platform, Touch, Who};
use crate::space::{RO, RW, Space, reach};
use flagstone_pgtable::format::{Access, Format, Leaf, Level, Marks};
use flagstone_pgtable::shadow::{Mapping, ShadowStack};
use flagstone_pgtable::{Pmd, Pte, TableLevel, VirtRange};
use flagstone_types::VirtAddr;

fn caps<P: Platform>(p: &P) -> flagstone_host::MmuCaps {
    use flagstone_host::Mmu;
    p.frames().host().capabilities()
}

pub(super) fn break_before_make<P: Platform>(p: &P) -> Outcome {
    if !P::Format::BREAK_BEFORE_MAKE {
        return Outcome::Skipped("the architecture lets entries change in one step");
    }
    for mix in [Mix::Walkers, Mix::Pages] {
        workloads::drawn(p, mix, p.cpus().min(6), 10);
    }
    Outcome::Passed
}

pub(super) fn paravirtual<P: Platform>(p: &P) -> Outcome {
    if !caps(p).paravirtual {
        return Outcome::Skipped("the machine writes its own entries");
    }
    for mix in [Mix::Walkers, Mix::Pages, Mix::All] {
        workloads::drawn(p, mix, p.cpus().min(6), 8);
    }
    Outcome::Passed
}

pub(super) fn stray_dirty<P: Platform>(p: &P) -> Outcome {
    if !caps(p).stray_dirty {
        return Outcome::Skipped("the unit leaves entries alone that have gone");
    }
    for mix in [Mix::Bits, Mix::Pages, Mix::All] {
        workloads::drawn(p, mix, p.cpus().min(6), 10);
    }
    Outcome::Passed
}

/// That a page is a shadow stack's, and is one all the time.
fn check_shadow<P: Platform>(space: &Space<'_, P>, va: VirtAddr) {
    let push = Touch::Push(space.new_word());
    assert!(space.read(va).is_ok());
    assert!(space.write(va).is_err(), "a store to a shadow stack");
    assert!(space.touch(VirtAddr(va.0 + 8), Who::User, push).is_ok());
    assert!(space.touch(va, Who::User, Touch::Exec).is_err());
    space.findings.assert_none();
    let leaf = space.leaf_at(va);
    assert!(
        leaf.marks().contains(Marks::SHADOW | Marks::DIRTY),
        "{leaf:?}"
    );
}

fn shadow_on<L: TableLevel, P: Platform>(space: &Space<'_, P>) {
    if !space.table().has_leaf(L::LEVEL) {
        return;
    }
    let Some((piece, at)) = space.memory(L::LEVEL) else {
        return;
    };
    let va = space.platform.window();
    let size = reach::<P::Format>(L::LEVEL);
    let range = VirtRange::new(va.0, size);
    let vma = "a mapping of a shadow stack";
    // SAFETY: the leaf is put at addresses of this case, which are such a mapping until they are unmapped.
    let kind = Mapping::ShadowStack(unsafe { ShadowStack::of_mapping(vma) });
    let leaf = Leaf::new(at, RW, kind);
    let pages = (size / Space::<P>::page()) as u64;
    space.findings.check(space.ledger.put_out(piece, 0, pages));
    assert_eq!(space.ops().map::<L>(va, &leaf, 1), Ok(()));
    check_shadow(space, va);
    // Ordinary protection leaves it one; a change of marks does not make another page one.
    space.protect(range, RO);
    check_shadow(space, va);
    if L::LEVEL > Level::PTE {
        assert_eq!(space.ops().split(va), Ok(()));
        check_shadow(space, VirtAddr(va.0 + size - Space::<P>::page()));
        assert_eq!(space.ops().collapse::<L>(va), Ok(()));
        check_shadow(space, va);
    }
    let protected = space.gathered(|ops, gather| ops.write_protect(range, gather));
    assert_eq!(protected, Ok(()));
    let push = Touch::Push(space.new_word());
    assert!(space.touch(VirtAddr(va.0 + 8), Who::User, push).is_err());
    let marks = space.leaf_at(va).marks();
    assert!(marks.contains(Marks::DIRTY) && !marks.contains(Marks::SHADOW));
    space.unmap(range);
    // A dirty page that loses its write access is none.
    space.map_new_at::<L>(va, RW);
    assert!(space.write(va).is_ok());
    space.protect(range, Access::READ | Access::USER);
    let marks = space.leaf_at(va).marks();
    assert!(marks.contains(Marks::DIRTY) && !marks.contains(Marks::SHADOW));
    assert!(space.touch(VirtAddr(va.0 + 8), Who::User, push).is_err());
    space.findings.assert_none();
    space.unmap(range);
}

pub(super) fn shadow_stack<P: Platform>(p: &P) -> Outcome {
    if !caps(p).shadow_stack || !P::Format::SHADOW {
        return Outcome::Skipped("the machine has no shadow stacks");
    }
    let Some(space) = Space::new(p, 16) else {
        return Outcome::Skipped("no memory for a page table");
    };
    space.run(1, &|_| {
        shadow_on::<Pte, P>(&space);
        shadow_on::<Pmd, P>(&space);
    });
    space.end(&[]);
    p.check_memory();
    Outcome::Passed
}
