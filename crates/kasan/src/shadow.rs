//! The state of memory: one shadow byte for eight bytes of it (a *granule*).
//!
//! A shadow byte is 0 if all eight may be accessed, 1 to 7 if so many of the first may, else a [`Code`] that says why none may. Red zones and
//! freed objects have no state anywhere else. Checks take no lock and write nothing; who changes the shadow of some memory owns that memory.
//! The codes are Linux's, and those that compilers emit for stacks.

mod check;
#[cfg(test)]
mod tests;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

pub use check::{BadAccess, check, first_bad};

use crate::report::{AccessBug, ShadowRows};

/// Bytes of memory that a shadow byte is about.
pub const GRANULE: usize = 8;

/// A host that has a shadow.
///
/// # Safety
/// An implementation promises (clauses of `MODEL.md`):
/// - **H1** [`Shadow::shadow_of`] answers for all addresses of an aligned block of [`Shadow::SPAN`] bytes or for none of them; within the block the shadow is
///   linear: `shadow_of(a + 8) = shadow_of(a) + 1`; a block's shadow begins at a multiple of 8;
/// - **H2** where it answers, the shadow byte is readable and writable, and reached as an atomic only.
pub unsafe trait Shadow {
    /// A power of two, at least 64: how much memory has linear shadow.
    const SPAN: usize = 4096;
    /// Addresses below are in no object: a fault there comes from a null pointer.
    const NULL_END: usize = 4096;
    /// Addresses below are the user's: 0 where there is no user beside us, as in a process.
    const USER_END: usize = 0;

    /// The shadow byte of the granule of `address`, `None` where there is no shadow.
    fn shadow_of(&self, address: usize) -> Option<NonNull<u8>>;
}

/// Why no byte of a granule may be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Code {
    /// A page that was freed.
    FreePage = 0xFF,
    /// Behind a large allocation, which has pages of its own.
    LargeRedzone = 0xFE,
    /// Around an object of a cache.
    SlabRedzone = 0xFC,
    /// An object that was freed.
    Freed = 0xFB,
    /// The first granule of an object that was freed, whose free track is kept in it.
    FreedWithTrack = 0xFA,
    /// Behind a global variable.
    GlobalRedzone = 0xF9,
    /// A variable whose scope has ended.
    OutOfScope = 0xF8,
    /// Before the variables of a frame.
    StackLeft = 0xF1,
    /// Between the variables of a frame.
    StackMid = 0xF2,
    /// Behind the variables of a frame.
    StackRight = 0xF3,
    /// Behind a variable of a frame, within its last granule.
    StackPartial = 0xF4,
    /// Before a block of `alloca`.
    AllocaLeft = 0xCA,
    /// Behind a block of `alloca`.
    AllocaRight = 0xCB,
}

impl Code {
    /// Every code.
    pub const ALL: [Self; 13] = [
        Self::FreePage,
        Self::LargeRedzone,
        Self::SlabRedzone,
        Self::Freed,
        Self::FreedWithTrack,
        Self::GlobalRedzone,
        Self::OutOfScope,
        Self::StackLeft,
        Self::StackMid,
        Self::StackRight,
        Self::StackPartial,
        Self::AllocaLeft,
        Self::AllocaRight,
    ];

    /// The code with this value.
    #[must_use]
    pub fn of(value: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|code| *code as u8 == value)
    }

    /// What an access to such memory is.
    #[must_use]
    pub const fn bug(self) -> AccessBug {
        match self {
            Self::FreePage => AccessBug::UseAfterFree,
            Self::LargeRedzone | Self::SlabRedzone => AccessBug::SlabOutOfBounds,
            Self::Freed | Self::FreedWithTrack => AccessBug::SlabUseAfterFree,
            Self::GlobalRedzone => AccessBug::GlobalOutOfBounds,
            Self::OutOfScope => AccessBug::UseAfterScope,
            Self::StackLeft | Self::StackMid | Self::StackRight | Self::StackPartial => {
                AccessBug::StackOutOfBounds
            }
            Self::AllocaLeft | Self::AllocaRight => AccessBug::AllocaOutOfBounds,
        }
    }
}

fn byte<'a>(shadow: NonNull<u8>) -> &'a AtomicU8 {
    // SAFETY: H2: an answer of `shadow_of`, or within its block (H1).
    unsafe { AtomicU8::from_ptr(shadow.as_ptr()) }
}

fn word<'a>(shadow: NonNull<u8>) -> &'a AtomicU64 {
    debug_assert!(shadow.addr().get().is_multiple_of(8));
    // SAFETY: H2, H1: eight bytes of one block's shadow, aligned by the caller.
    unsafe { AtomicU64::from_ptr(shadow.as_ptr().cast()) }
}

/// The shadow byte of the granule of `address`.
pub fn load<S: Shadow>(host: &S, address: usize) -> Option<u8> {
    host.shadow_of(address)
        .map(|shadow| byte(shadow).load(Ordering::Relaxed))
}

/// Calls `each` with every stretch of linear shadow of the granules from `address` on, and how many of them it has. Granules without shadow are left out.
fn stretches<S: Shadow>(
    host: &S,
    address: usize,
    granules: usize,
    mut each: impl FnMut(NonNull<u8>, usize),
) {
    let mut at = address;
    let mut left = granules;
    while left > 0 {
        let count = ((S::SPAN - at % S::SPAN) / GRANULE).min(left);
        if let Some(shadow) = host.shadow_of(at) {
            each(shadow, count);
        }
        at = at.wrapping_add(count * GRANULE);
        left -= count;
    }
}

/// Stores `value` to `count` shadow bytes: by words where they are aligned.
fn fill(mut shadow: NonNull<u8>, mut count: usize, value: u8) {
    let step = |shadow: NonNull<u8>, by: usize| -> NonNull<u8> {
        // SAFETY: H1: within the block's shadow, or just behind it.
        unsafe { shadow.add(by) }
    };
    while count > 0 && !shadow.addr().get().is_multiple_of(8) {
        byte(shadow).store(value, Ordering::Relaxed);
        shadow = step(shadow, 1);
        count -= 1;
    }
    let eight = u64::from_ne_bytes([value; 8]);
    while count >= 8 {
        word(shadow).store(eight, Ordering::Relaxed);
        shadow = step(shadow, 8);
        count -= 8;
    }
    while count > 0 {
        byte(shadow).store(value, Ordering::Relaxed);
        shadow = step(shadow, 1);
        count -= 1;
    }
}

/// Forbids access to the granules of `[address, address + bytes)`, a part of a granule at the end included. `address` is the start of a granule (else the
/// granule that it is in is left as it is).
pub fn poison<S: Shadow>(host: &S, address: usize, bytes: usize, code: Code) {
    let skipped = address.wrapping_neg() % GRANULE;
    let Some(bytes) = bytes.checked_sub(skipped) else {
        return;
    };
    let granules = bytes.div_ceil(GRANULE);
    stretches(
        host,
        address.wrapping_add(skipped),
        granules,
        |shadow, count| {
            fill(shadow, count, code as u8);
        },
    );
}

/// Allows access to `[address, address + bytes)`, and of the last granule to no more than that. `address` is the start of a granule (else it
/// is taken down to one).
pub fn unpoison<S: Shadow>(host: &S, address: usize, bytes: usize) {
    let start = address - address % GRANULE;
    let bytes = bytes + address % GRANULE;
    let whole = bytes / GRANULE;
    stretches(host, start, whole, |shadow, count| fill(shadow, count, 0));
    let rest = bytes % GRANULE;
    if rest > 0 {
        let end = start.wrapping_add(whole * GRANULE);
        if let Some(shadow) = host.shadow_of(end) {
            byte(shadow).store(rest as u8, Ordering::Relaxed);
        }
    }
}

/// Allows access to an object of `bytes` bytes at `address` and forbids it to what is left of its `room`, with `code`: what an
/// allocation does.
pub fn unpoison_object<S: Shadow>(host: &S, address: usize, bytes: usize, room: usize, code: Code) {
    let bytes = bytes.min(room);
    unpoison(host, address, bytes);
    let end = bytes.next_multiple_of(GRANULE);
    if end < room {
        poison(host, address.wrapping_add(end), room - end, code);
    }
}

/// How many bytes from `address` on may be accessed, `most` at the most: what was asked for, read off the shadow.
pub fn accessible<S: Shadow>(host: &S, address: usize, most: usize) -> usize {
    first_bad(host, address, most).map_or(most, |bad| bad.wrapping_sub(address))
}

/// What is wrong with an access whose first bad byte is at `first_bad`, as the shadow there says.
pub fn bug_at<S: Shadow>(host: &S, first_bad: usize) -> AccessBug {
    let Some(mut value) = load(host, first_bad) else {
        return if first_bad < S::NULL_END {
            AccessBug::NullPtrDeref
        } else if first_bad < S::USER_END {
            AccessBug::UserMemoryAccess
        } else {
            AccessBug::WildMemoryAccess
        };
    };
    // The end of an object within its last granule: what follows says what it is the end of.
    if (1..GRANULE as u8).contains(&value) {
        value = match load(host, first_bad.wrapping_add(GRANULE)) {
            Some(next) if Code::of(next).is_some() => next,
            _ => Code::SlabRedzone as u8,
        };
    }
    Code::of(value).map_or(AccessBug::UnknownCrash, Code::bug)
}

/// A copy of the shadow around `address`, for a report.
pub fn rows_around<S: Shadow>(host: &S, address: usize) -> ShadowRows {
    let span = ShadowRows::SPAN.0;
    let start = (address - address % span).wrapping_sub(2 * span);
    let mut rows = [None; ShadowRows::ROWS];
    for (k, row) in rows.iter_mut().enumerate() {
        let row_start = start.wrapping_add(k * span);
        let mut bytes = [0; ShadowRows::BYTES];
        let known = bytes.iter_mut().enumerate().all(|(k, byte)| {
            match load(host, row_start.wrapping_add(k * GRANULE)) {
                Some(value) => {
                    *byte = value;
                    true
                }
                None => false,
            }
        });
        *row = known.then_some(bytes);
    }
    ShadowRows {
        address,
        start,
        rows,
    }
}
