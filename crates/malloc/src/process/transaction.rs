//! The transaction forms: a transaction id beside the state, both changed by one double-width compare-exchange.
//!
//! They are the published design, brought to user space for comparison. `TransactionArray` keeps pointers in slots,
//! `TransactionList` links the objects through themselves.
//!
//! **Array.** `{count, tid}`, the limit, then slots. A pop reads the slot below the count and commits `{count - 1, tid + 2}`; if
//! anything happened in between, the tid is another and the exchange fails. A push can not be done so: it would have to write
//! its slot before it owns it, and a late store could hit a slot that others have filled since. So it takes two steps: an
//! exchange sets the low bit of the tid (`BUSY`), which makes the slots the pusher's alone (P19); then it
//! writes the slot, the count, and last a tid without the bit. Whoever finds `BUSY` for long behaves as if the stack were empty or full.
//!
//! **List.** `{head, length << 48 | tid}`, the limit. The link of the head may be read after the object was taken by
//! somebody else; the exchange fails then (P21).
//!
//! A section reads the tid first, then the stop flag, then the rest (P18): a drain changes the tid after the flag
//! was set, so a section that saw the new tid sees the flag, and one that saw the old tid can not commit.

use core::arch::asm;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use flagstone_host::{ArrayParams, CpuCache, Push};
use flagstone_types::{AllocError, CpuId};

use super::arrays;
use super::room::Room;
use super::{ArrayForm, syscall};

const BUSY: u64 = 1;
/// Looks at a busy stack this often before it counts as empty or full.
const PATIENCE: u32 = 64;
/// Words before the first slot: two that change together, and the limit.
const STATE_WORDS: usize = 3;
/// Words that a room has before its slots; the rest of the state is a slot to it.
const HEADER_WORDS: usize = 2;

/// Exchanges two words at `at`, 16-byte aligned, if they are `old`.
///
/// # Safety
/// `at` is valid for that.
#[inline(always)]
unsafe fn exchange_both(at: *mut AtomicU64, old: [u64; 2], new: [u64; 2]) -> bool {
    let done: u8;
    // SAFETY: the caller's; rbx, which the compiler keeps for itself, is restored. No operand may be left to the compiler's
    // choice: it may choose rbx.
    unsafe {
        asm!(
            "xchg rsi, rbx",
            "lock cmpxchg16b [rdi]",
            "sete r8b",
            "mov rbx, rsi",
            inout("rsi") new[0] => _,
            out("r8b") done,
            in("rdi") at,
            inout("rax") old[0] => _,
            inout("rdx") old[1] => _,
            in("rcx") new[1],
            options(nostack),
        );
    }
    done != 0
}

/// One CPU's stack.
#[derive(Clone, Copy)]
struct Stack {
    words: *mut AtomicU64,
}

impl Stack {
    /// The current CPU's stack.
    #[inline]
    fn current(room: &Room) -> Option<Self> {
        let cpu = arrays::current_cpu();
        Self::of(room, cpu).or_else(|| Self::of(room, CpuId(0)))
    }

    #[inline]
    fn of(room: &Room, cpu: CpuId) -> Option<Self> {
        room.header(cpu).map(|_| Self {
            words: room.words(cpu.0),
        })
    }

    #[inline]
    fn word(&self, n: usize) -> &AtomicU64 {
        // SAFETY: P11, a stack of these forms begins with three words.
        unsafe { &*self.words.add(n) }
    }

    /// The state now: the first word and the tid, the tid read first. `None` while arrays are stopped.
    #[inline]
    fn read(&self) -> Option<[u64; 2]> {
        let tid = self.word(1).load(Ordering::Acquire);
        if arrays::is_stopped() {
            return None;
        }
        Some([self.word(0).load(Ordering::Acquire), tid])
    }

    #[inline]
    fn exchange(&self, old: [u64; 2], new: [u64; 2]) -> bool {
        // SAFETY: P11, arrays begin at multiples of 64 bytes.
        unsafe { exchange_both(self.words, old, new) }
    }

    /// Sets `BUSY` if the tid is still `tid`; a tid stands for one state, so what was read with it holds then.
    #[inline]
    fn claim(&self, tid: u64) -> bool {
        let word = self.word(1);
        word.compare_exchange(tid, tid | BUSY, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    fn slots(&self) -> *mut *mut u8 {
        self.words.wrapping_add(STATE_WORDS).cast()
    }

    fn limit(&self) -> u32 {
        self.word(2).load(Ordering::Relaxed) as u32
    }

    fn set_limit(&self, limit: u32) {
        if limit != self.limit() {
            self.word(2).store(limit.into(), Ordering::Relaxed);
        }
    }
}

fn make_room(slots: u32) -> Result<Room, AllocError> {
    let extra = (STATE_WORDS - HEADER_WORDS) as u32;
    let slots_and_state = slots.checked_add(extra).ok_or(AllocError::TooLarge)?;
    Room::new(slots_and_state, false)
}

/// Arrays with transaction ids.
#[derive(Clone, Copy, Debug)]
pub struct TransactionArray;

/// Per-CPU stacks with transaction ids.
#[derive(Debug)]
pub struct TransactionArrayCache {
    room: Room,
}

impl ArrayForm for TransactionArray {
    type Array = TransactionArrayCache;

    fn make(params: ArrayParams) -> Result<TransactionArrayCache, AllocError> {
        Ok(TransactionArrayCache {
            room: make_room(params.capacity)?,
        })
    }

    fn drain(array: &TransactionArrayCache, cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>])) {
        let Some(stack) = Stack::of(&array.room, cpu) else {
            return;
        };
        let owned = loop {
            let tid = stack.word(1).load(Ordering::Acquire);
            let count = stack.word(0).load(Ordering::Acquire);
            if tid == 0 && count == 0 {
                return;
            }
            if tid & BUSY == 0 && stack.claim(tid) {
                break Owned {
                    stack,
                    count: count as usize,
                    tid,
                };
            }
            syscall::yield_now();
        };
        if owned.count > 0 {
            // SAFETY: P19, the slots below the count are ours.
            take(unsafe { core::slice::from_raw_parts(stack.slots().cast(), owned.count) });
        }
        owned.finish(0);
    }
}

/// A stack whose `BUSY` bit this context set (P19).
struct Owned {
    stack: Stack,
    count: usize,
    tid: u64,
}

impl Owned {
    fn take(room: &Room) -> Option<Self> {
        let stack = Stack::current(room)?;
        for _ in 0..PATIENCE {
            let [count, tid] = stack.read()?;
            if tid & BUSY == 0 && stack.claim(tid) {
                return Some(Self {
                    stack,
                    count: count as usize,
                    tid,
                });
            }
            core::hint::spin_loop();
        }
        None
    }

    /// Writes the slot `at`, which is below the limit.
    fn write(&self, at: usize, object: NonNull<u8>) {
        // SAFETY: P19, the slots above the count are ours. Atomic, since a late pop may still read it.
        let slot = unsafe { &*self.stack.slots().add(at).cast::<AtomicU64>() };
        slot.store(object.as_ptr() as u64, Ordering::Relaxed);
    }

    fn finish(self, count: usize) {
        self.stack.word(0).store(count as u64, Ordering::Relaxed);
        self.stack
            .word(1)
            .store(self.tid.wrapping_add(2), Ordering::Release);
    }
}

// SAFETY: A1, A2: P18, P19. A3: the exchange and the store of the tid order what was written before. A4: objects are not touched.
unsafe impl CpuCache for TransactionArrayCache {
    #[inline]
    fn pop(&self) -> Option<NonNull<u8>> {
        for _ in 0..PATIENCE {
            let stack = Stack::current(&self.room)?;
            let [count, tid] = stack.read()?;
            if tid & BUSY == 0 {
                let top = count.checked_sub(1)?;
                // SAFETY: P11, a count is never above the capacity. The value is used only if the exchange succeeds.
                let object = unsafe {
                    (*stack.slots().add(top as usize).cast::<AtomicU64>()).load(Ordering::Relaxed)
                };
                if stack.exchange([count, tid], [top, tid.wrapping_add(2)]) {
                    return NonNull::new(object as *mut u8);
                }
            }
            core::hint::spin_loop();
        }
        None
    }

    #[inline]
    unsafe fn push(&self, object: NonNull<u8>) -> Push {
        let Some(owned) = Owned::take(&self.room) else {
            return Push::Full;
        };
        let count = owned.count;
        // SAFETY: P19, a slot below the count.
        if count > 0 && unsafe { owned.stack.slots().add(count - 1).read() } == object.as_ptr() {
            owned.finish(count);
            return Push::OnTop;
        }
        if count >= owned.stack.limit() as usize {
            owned.finish(count);
            return Push::Full;
        }
        owned.write(count, object);
        owned.finish(count + 1);
        Push::Done
    }

    fn pop_n(&self, into: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        let Some(owned) = Owned::take(&self.room) else {
            return 0;
        };
        let taken = owned.count.min(into.len());
        let left = owned.count - taken;
        // SAFETY: P19, slots below the count.
        unsafe {
            into.as_mut_ptr()
                .copy_from_nonoverlapping(owned.stack.slots().add(left).cast(), taken)
        };
        owned.finish(left);
        taken
    }

    #[inline]
    unsafe fn push_n(&self, objects: &[NonNull<u8>]) -> usize {
        let Some(owned) = Owned::take(&self.room) else {
            return 0;
        };
        let limit = owned.stack.limit() as usize;
        let taken = limit.saturating_sub(owned.count).min(objects.len());
        for (n, object) in objects[objects.len() - taken..].iter().enumerate() {
            owned.write(owned.count + n, *object);
        }
        let count = owned.count + taken;
        owned.finish(count);
        taken
    }

    fn set_limit(&self, cpu: CpuId, limit: u32) {
        if let Some(stack) = Stack::of(&self.room, cpu) {
            let capacity = self.room.capacity() - (STATE_WORDS - HEADER_WORDS) as u32;
            stack.set_limit(limit.min(capacity));
        }
    }

    fn limit(&self, cpu: CpuId) -> u32 {
        Stack::of(&self.room, cpu).map_or(0, |stack| stack.limit())
    }

    fn len(&self, cpu: CpuId) -> u32 {
        Stack::of(&self.room, cpu).map_or(0, |stack| stack.word(0).load(Ordering::Relaxed) as u32)
    }

    fn tag(&self) -> u16 {
        self.room.tag()
    }
}

/// Lists with transaction ids.
#[derive(Clone, Copy, Debug)]
pub struct TransactionList;

/// Per-CPU lists of objects with transaction ids.
#[derive(Debug)]
pub struct TransactionListCache {
    room: Room,
    link_offset: usize,
    capacity: u32,
}

/// The length is in the upper bits of the second word.
const LENGTH_SHIFT: u32 = 48;
const TID_MASK: u64 = (1 << LENGTH_SHIFT) - 1;

fn length_and_tid(length: u64, old: u64) -> u64 {
    length << LENGTH_SHIFT | (old.wrapping_add(1) & TID_MASK)
}

impl ArrayForm for TransactionList {
    type Array = TransactionListCache;

    fn make(params: ArrayParams) -> Result<TransactionListCache, AllocError> {
        if params.capacity > u32::from(u16::MAX) {
            return Err(AllocError::TooLarge);
        }
        // No slots: the objects hold the list, and the room's capacity says nothing of it.
        let room = make_room(0)?;
        Ok(TransactionListCache {
            room,
            link_offset: params.link_offset as usize,
            capacity: params.capacity,
        })
    }

    fn drain(array: &TransactionListCache, cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>])) {
        let Some(stack) = Stack::of(&array.room, cpu) else {
            return;
        };
        let mut head = loop {
            let tid = stack.word(1).load(Ordering::Acquire);
            let head = stack.word(0).load(Ordering::Acquire);
            if tid == 0 && head == 0 {
                return;
            }
            if stack.exchange([head, tid], [0, length_and_tid(0, tid)]) {
                break head;
            }
        };
        // The list has the top first; pieces are to come bottom first.
        let mut piece = [NonNull::dangling(); 64];
        let mut reversed = 0u64;
        while let Some(object) = NonNull::new(head as *mut u8) {
            head = array.link(object).swap(reversed, Ordering::Relaxed);
            reversed = object.as_ptr() as u64;
        }
        let mut filled = 0;
        while let Some(object) = NonNull::new(reversed as *mut u8) {
            reversed = array.link(object).load(Ordering::Relaxed);
            piece[filled] = object;
            filled += 1;
            if filled == piece.len() || reversed == 0 {
                take(&piece[..filled]);
                filled = 0;
            }
        }
    }
}

impl TransactionListCache {
    #[inline]
    fn link(&self, object: NonNull<u8>) -> &AtomicU64 {
        // SAFETY: A4, P21: the eight bytes at the link offset of an object, aligned, readable for ever.
        unsafe { &*object.as_ptr().add(self.link_offset).cast() }
    }
}

// SAFETY: A1, A2: P18, P21. A3: the exchange orders what was written before. A4: only the link is touched.
unsafe impl CpuCache for TransactionListCache {
    const READS_STALE_LINKS: bool = true;

    #[inline]
    fn pop(&self) -> Option<NonNull<u8>> {
        loop {
            let stack = Stack::current(&self.room)?;
            let [head, tid] = stack.read()?;
            let object = NonNull::new(head as *mut u8)?;
            let next = self.link(object).load(Ordering::Relaxed);
            let length = (tid >> LENGTH_SHIFT).wrapping_sub(1);
            if stack.exchange([head, tid], [next, length_and_tid(length, tid)]) {
                return Some(object);
            }
        }
    }

    #[inline]
    unsafe fn push(&self, object: NonNull<u8>) -> Push {
        loop {
            let Some(stack) = Stack::current(&self.room) else {
                return Push::Full;
            };
            let Some([head, tid]) = stack.read() else {
                return Push::Full;
            };
            let length = tid >> LENGTH_SHIFT;
            if head == object.as_ptr() as u64 {
                return Push::OnTop;
            }
            if length >= u64::from(stack.limit()) {
                return Push::Full;
            }
            self.link(object).store(head, Ordering::Relaxed);
            if stack.exchange(
                [head, tid],
                [object.as_ptr() as u64, length_and_tid(length + 1, tid)],
            ) {
                return Push::Done;
            }
        }
    }

    fn pop_n(&self, into: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        // The top is to be last in the filled part, whose length is known only afterwards.
        let mut taken = 0;
        while taken < into.len() {
            let Some(object) = self.pop() else { break };
            into[taken] = MaybeUninit::new(object);
            taken += 1;
        }
        into[..taken].reverse();
        taken
    }

    unsafe fn push_n(&self, objects: &[NonNull<u8>]) -> usize {
        // The chain is linked for the room that the state shows and goes in by one exchange on that very state, or not at all.
        let Some(stack) = Stack::current(&self.room) else {
            return 0;
        };
        let Some([head, tid]) = stack.read() else {
            return 0;
        };
        let room = u64::from(stack.limit()).saturating_sub(tid >> LENGTH_SHIFT) as usize;
        let from = &objects[objects.len() - room.min(objects.len())..];
        let (Some(first), Some(last)) = (from.first(), from.last()) else {
            return 0;
        };
        for pair in from.windows(2) {
            self.link(pair[1])
                .store(pair[0].as_ptr() as u64, Ordering::Relaxed);
        }
        self.link(*first).store(head, Ordering::Relaxed);
        let length = (tid >> LENGTH_SHIFT) + from.len() as u64;
        let done = stack.exchange(
            [head, tid],
            [last.as_ptr() as u64, length_and_tid(length, tid)],
        );
        if done { from.len() } else { 0 }
    }

    fn set_limit(&self, cpu: CpuId, limit: u32) {
        if let Some(stack) = Stack::of(&self.room, cpu) {
            stack.set_limit(limit.min(self.capacity));
        }
    }

    fn limit(&self, cpu: CpuId) -> u32 {
        Stack::of(&self.room, cpu).map_or(0, |stack| stack.limit())
    }

    fn len(&self, cpu: CpuId) -> u32 {
        Stack::of(&self.room, cpu).map_or(0, |stack| {
            (stack.word(1).load(Ordering::Relaxed) >> LENGTH_SHIFT) as u32
        })
    }

    fn tag(&self) -> u16 {
        self.room.tag()
    }
}
