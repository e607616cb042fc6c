//! Permissions: every combination of write, user and no-execute, in leaves of every size and in the entry above, against what the manual
//! says that each kind of access may do (Intel's manual, volume 3, 4.6 and 4.7).

use super::tables::{Tables, contents, load, store};
use super::{FRAME, LARGE, NO_EXEC, PLACE, PRESENT, USER, WRITE};
use crate::access::{self, Fault, RETURN, Who, try_exec, try_read, try_write};
use crate::features::{self, Features};
use crate::kernel::Kernel;
use crate::unit;
use flagstone_host::{Invalidate, Mmu};
use flagstone_pgtable::FaultCode;
use flagstone_types::VirtAddr;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Read,
    Write,
    Exec,
}

/// What the unit must answer to an access of a page that is there and whose bits along the walk join to these.
fn expected(who: Who, kind: Kind, write: bool, user: bool, no_exec: bool) -> Result<(), FaultCode> {
    let has = |feature| features::features().contains(feature);
    let mut code = FaultCode::PRESENT;
    code.set(FaultCode::USER, who == Who::User);
    code.set(FaultCode::WRITE, kind == Kind::Write);
    code.set(FaultCode::FETCH, kind == Kind::Exec);
    let allowed = match (who, kind) {
        (Who::User, _) if !user => false,
        (_, Kind::Exec) if no_exec => false,
        // CR0.WP is set: the kernel may not write what is read-only either.
        (_, Kind::Write) if !write => false,
        (Who::User, _) => true,
        (_, Kind::Exec) => !(user && has(Features::SMEP)),
        (Who::Kernel, _) => !(user && has(Features::SMAP)),
        (Who::KernelForUser, _) => true,
    };
    if allowed { Ok(()) } else { Err(code) }
}

fn attempt(who: Who, kind: Kind, at: VirtAddr) -> Result<(), Fault> {
    // SAFETY: a frame of the trial, which begins with a return instruction, is what may be there.
    unsafe {
        match kind {
            Kind::Read => try_read(who, at).map(drop),
            Kind::Write => try_write(who, VirtAddr(at.0 + 8), 1),
            Kind::Exec => try_exec(who, at),
        }
    }
}

const WHO: [Who; 3] = [Who::Kernel, Who::KernelForUser, Who::User];
const KINDS: [Kind; 3] = [Kind::Read, Kind::Write, Kind::Exec];

/// The bits of an entry that number `n` of the eight combinations says.
fn bits(n: u64) -> u64 {
    let or_0 = |bit: u64, value| if n >> bit & 1 != 0 { value } else { 0 };
    or_0(0, WRITE) | or_0(1, USER) | or_0(2, NO_EXEC)
}

/// Invalidates everything on this CPU.
fn forget() {
    Kernel.invalidate(&Invalidate::all(None));
}

/// A leaf on `level`, every combination in it and in the entry above.
fn level(level: u8) {
    let mut tables = Tables::new();
    let frame = tables.frame(0);
    // SAFETY: a frame of ours.
    unsafe { contents(frame).cast::<u8>().write(RETURN) };
    let shift = super::tables::shift(level);
    // Of a large page the frame is a part.
    let at = PLACE >> shift << shift | frame.0 as usize & ((1 << shift) - 1);
    let at = VirtAddr(at);
    let leaf = tables.entry(at, level);
    let above = tables.entry(at, level + 1);
    let table = load(above) & FRAME;
    let large = if level == 1 { 0 } else { LARGE };
    tables.enter();
    for (own, upper) in (0..64).map(|n| (bits(n & 7), bits(n >> 3))) {
        store(leaf, frame.0 >> shift << shift | PRESENT | large | own);
        store(above, table | PRESENT | upper);
        forget();
        for who in WHO {
            for kind in KINDS {
                let (both, any) = (own & upper, own | upper);
                let want = expected(
                    who,
                    kind,
                    both & WRITE != 0,
                    both & USER != 0,
                    any & NO_EXEC != 0,
                );
                let got = attempt(who, kind, at);
                let fits = match (got, want) {
                    (Ok(()), Ok(())) => true,
                    (Err(fault), Err(code)) => fault.vector == 14 && fault.code == code.bits(),
                    _ => false,
                };
                assert!(
                    fits,
                    "{who:?} {kind:?} of {at:x?}, level {level}, bits {own:#x} below {upper:#x}: {got:x?} instead of {want:?}"
                );
            }
        }
    }
    tables.leave();
    tables.free();
}

/// What is not there, has a bit that must be 0, or is outside of both halves.
fn faults() {
    let mut tables = Tables::new();
    let frame = tables.frame(0);
    let at = VirtAddr(PLACE);
    let entry = tables.entry(at, 1);
    tables.enter();
    for who in WHO {
        let user = if who == Who::User {
            FaultCode::USER.bits()
        } else {
            0
        };
        let fault = |vector, code, address| {
            Err(Fault {
                vector,
                code,
                address: VirtAddr(address),
            })
        };
        store(entry, 0);
        forget();
        assert_eq!(try_read(who, at), fault(14, user, PLACE));
        // The highest address bit of an entry, which a machine with few address bits may not set.
        if features::phys_bits() < 52 {
            store(entry, frame.0 | PRESENT | USER | 1 << 51);
            forget();
            let answer = try_read(who, at).map_err(|fault| Fault {
                // QEMU leaves PRESENT out where the manual has it.
                code: fault.code & !FaultCode::PRESENT.bits(),
                ..fault
            });
            let code = FaultCode::RESERVED.bits();
            assert_eq!(answer, fault(14, code | user, PLACE));
        }
        let hole = 1 << (11 + 9 * u32::from(unit::levels()));
        assert_eq!(try_read(who, VirtAddr(hole)), fault(13, 0, 0));
        // SAFETY: nothing is there.
        let ran = unsafe { try_exec(who, VirtAddr(hole)) };
        assert_eq!(ran.map_err(|fault| fault.vector), Err(13));
    }
    tables.leave();
    tables.free();
}

/// An address that only five levels reach.
fn fifth_level() {
    if unit::levels() < 5 {
        return;
    }
    let mut tables = Tables::new();
    let frame = tables.frame(0);
    let at = VirtAddr(0x00a5_0000_0000_0000);
    let entry = tables.entry(at, 1);
    store(entry, frame.0 | PRESENT | WRITE | USER);
    tables.enter();
    // SAFETY: the trial's frame.
    unsafe { contents(frame).write_volatile(57) };
    assert_eq!(try_read(Who::User, at), Ok(57));
    tables.leave();
    tables.free();
}

/// The page that user mode runs may not be written by it, nor by the kernel.
fn own_page() {
    let at = VirtAddr(crate::layout::USER_PAGE);
    for who in WHO {
        // SAFETY: the write is refused, or else the run ends.
        let wrote = unsafe { try_write(who, at, 0) };
        assert!(wrote.is_err(), "{who:?} wrote code of user mode");
    }
    assert!(access::try_read(Who::User, at).is_ok());
}

pub(super) fn run() {
    own_page();
    level(1);
    level(2);
    if features::features().contains(Features::GIB_PAGES) {
        level(3);
    }
    faults();
    fifth_level();
}
