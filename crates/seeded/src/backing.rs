//! Who owns the memory behind the frames: committing, taking and releasing, compared with the books at every call.

use crate::context::Point;
use crate::failure::FailureKind;
use crate::faults::Call;
use crate::machine::Machine;
use crate::memory::{COMMITTED, EXISTS, TOUCHED, UNCOMMITTED};
use flagstone_host::Backing;
use flagstone_types::{AllocError, PfnRange};

/// What frames hold while they are being released.
const RELEASING: u8 = 0xdb;

impl<const SHIFT: u32, const ORDER: u32> Backing for &Machine<SHIFT, ORDER> {
    const CAN_RELEASE: bool = true;

    fn commit(&self, frames: PfnRange) -> Result<(), AllocError> {
        let core = self.core();
        core.step(Point::Backing);
        core.must_exist("commit", frames, EXISTS);
        if core.faults.fails(Call::Commit, &core.rng) {
            return Err(AllocError::OutOfMemory);
        }
        if let Some(pfn) = core.memory.other_than(frames, UNCOMMITTED, COMMITTED, 0) {
            core.fail(
                FailureKind::Memory,
                format!("frame {pfn} was written before it was committed"),
            );
        }
        core.memory.each(frames, |book, frame| {
            if book.get() & COMMITTED == 0 {
                book.set(EXISTS | COMMITTED);
                // SAFETY: B5: a frame is PAGE_SIZE bytes; nobody may use it before it is committed (M5).
                unsafe { frame.write_bytes(0, 1 << SHIFT) };
            }
        });
        core.step(Point::Backing);
        Ok(())
    }

    fn release(&self, frames: PfnRange) -> bool {
        let core = self.core();
        core.step(Point::Backing);
        core.must_exist("release", frames, EXISTS | COMMITTED);
        if core.faults.fails(Call::Release, &core.rng) {
            core.memory.each(frames, |_, frame| {
                if core.rng.chance(64) {
                    // SAFETY: B5: a frame is PAGE_SIZE bytes; M6: the caller owns it, and some may be zero already.
                    unsafe { frame.write_bytes(0, 1 << SHIFT) };
                }
            });
            return false;
        }
        // SAFETY: B5: a frame is PAGE_SIZE bytes; M6: the caller owns it.
        core.memory.each(frames, |_, frame| unsafe {
            frame.write_bytes(RELEASING, 1 << SHIFT)
        });
        core.step(Point::Backing);
        core.step(Point::Backing);
        if let Some(pfn) = core.memory.other_than(frames, RELEASING, EXISTS, EXISTS) {
            core.fail(
                FailureKind::Memory,
                format!("frame {pfn} was written while it was being released"),
            );
        }
        core.memory.each(frames, |book, frame| {
            // SAFETY: B5: a frame is PAGE_SIZE bytes; M6: the caller owns it.
            unsafe { frame.write_bytes(0, 1 << SHIFT) };
            book.set(EXISTS | COMMITTED);
        });
        core.step(Point::Backing);
        true
    }

    fn take(&self, frames: PfnRange) -> bool {
        let core = self.core();
        core.step(Point::Backing);
        core.must_exist("take", frames, EXISTS | COMMITTED);
        let known = EXISTS | COMMITTED | TOUCHED;
        if let Some(pfn) = core.memory.other_than(frames, 0, known, EXISTS | COMMITTED) {
            let text =
                format!("frame {pfn} is known to be zero, but was written without being taken");
            core.fail(FailureKind::Memory, text);
        }
        let mut zero = true;
        core.memory.each(frames, |book, _| {
            zero &= book.get() & TOUCHED == 0;
            book.set(known);
        });
        core.step(Point::Backing);
        zero
    }

    fn touched(&self, frames: PfnRange) -> usize {
        let core = self.core();
        core.step(Point::Backing);
        core.must_exist("touched", frames, EXISTS);
        let mut touched = 0;
        core.memory.each(frames, |book, _| {
            touched += usize::from(book.get() & TOUCHED != 0)
        });
        touched
    }
}
