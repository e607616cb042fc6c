//! Spin locks with a class (L1, L2).

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::interrupts::{self, IrqGuard};
use crate::per_cpu::Area;
use flagstone_host::LockClass;
use lock_api::{GuardNoSend, RawMutex};

/// A raw lock of class `C`; blocks interrupts while it is held if the class is taken in them.
#[derive(Debug)]
pub struct SpinLock<C: LockClass> {
    word: AtomicU32,
    class: PhantomData<C>,
}

impl<C: LockClass> SpinLock<C> {
    fn take(&self) -> bool {
        self.word.load(Ordering::Relaxed) == 0
            && self
                .word
                .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    /// Adds to the list of this CPU, or says what is wrong and ends the run.
    fn note_taken(&self, tried: bool) {
        if cfg!(debug_assertions) {
            let _guard = IrqGuard::new();
            let address = core::ptr::from_ref(self).addr();
            // SAFETY: L2, P3: this CPU's list, with interrupts blocked.
            let result = unsafe { (*Area::current().held.get()).acquire::<C>(address, tried) };
            if let Err(violation) = result {
                panic!("{violation}");
            }
        }
    }

    fn note_released(&self) {
        if cfg!(debug_assertions) {
            let _guard = IrqGuard::new();
            let address = core::ptr::from_ref(self).addr();
            // SAFETY: L2, P3: this CPU's list, with interrupts blocked.
            let result = unsafe { (*Area::current().held.get()).release::<C>(address) };
            if let Err(violation) = result {
                panic!("released without being held: {violation}");
            }
        }
    }
}

// SAFETY: L1: the compare-exchange admits one holder.
unsafe impl<C: LockClass> RawMutex for SpinLock<C> {
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: Self = Self {
        word: AtomicU32::new(0),
        class: PhantomData,
    };

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if C::IN_INTERRUPT {
            interrupts::block();
        }
        // Noted before it is had, so that a wrong order is told instead of a wait without end.
        self.note_taken(false);
        while !self.take() {
            core::hint::spin_loop();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        if C::IN_INTERRUPT {
            interrupts::block();
        }
        let taken = self.take();
        if taken {
            self.note_taken(true);
        } else if C::IN_INTERRUPT {
            // SAFETY: I2: blocked above.
            unsafe { interrupts::unblock() };
        }
        taken
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.note_released();
        self.word.store(0, Ordering::Release);
        if C::IN_INTERRUPT {
            // SAFETY: I2: blocked when it was taken, on this CPU, since guards stay on theirs.
            unsafe { interrupts::unblock() };
        }
    }

    fn is_locked(&self) -> bool {
        self.word.load(Ordering::Relaxed) != 0
    }
}
