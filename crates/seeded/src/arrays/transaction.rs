//! Forms whose state is one word, a transaction id with a count or a list head, changed by compare-exchange.
//!
//! Every change of the word changes the id, so a compare-exchange that expects an id succeeds only if nothing
//! changed in between. A pop reads what it needs and exchanges: lock-free. A push into *slots* first sets the
//! busy bit: while it is set only its owner stores to slots, and the count can only fall, so that the slots from the
//! count upwards are dead and a late store of the owner's clobbers nobody's pointer. A push into a *list* stores
//! only to its own object. `MODEL.md`, A3 and A4, has the argument.

use super::{Inner, Mutation, Stack};
use crate::context::Point;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use flagstone_host::Push;

/// Rounds for which somebody else's busy bit is waited for before a push is refused, where there are no interrupts.
const ROUNDS: u32 = 8;

/// A word as it was read.
#[derive(Clone, Copy)]
struct Word {
    tid: u64,
    count: usize,
    busy: bool,
    /// Arrays were stopped before it was read, or it is marked.
    stopped: bool,
    head: Option<NonNull<u8>>,
}

impl Inner<'_> {
    /// Reads whether arrays are stopped, then the word.
    fn load(&self, stack: &Stack) -> Word {
        self.core.step(Point::Section);
        let stopped = self.core.arrays_stopped();
        self.core.step(Point::Section);
        Word {
            tid: stack.tid.get(),
            count: stack.count.get(),
            busy: stack.busy.get(),
            stopped: stopped || stack.marked.get(),
            head: stack.head.get(),
        }
    }

    /// The compare-exchange, with a step before it.
    fn exchange(
        &self,
        stack: &Stack,
        old: Word,
        count: usize,
        busy: bool,
        head: Option<NonNull<u8>>,
    ) -> bool {
        self.core.step(Point::Commit);
        let same = stack.tid.get() == old.tid;
        if same {
            stack.change(count, busy, stack.marked.get(), head);
        } else {
            self.core.arrays.stat(|s| s.exchange_failures += 1);
        }
        same
    }

    pub(super) fn word_pop(&self) -> Option<NonNull<u8>> {
        let mut into = [MaybeUninit::uninit()];
        if self.word_pop_n(&mut into) == 0 {
            return None;
        }
        // SAFETY: A3: a pop of one pointer has written it.
        Some(unsafe { into[0].assume_init() })
    }

    pub(super) fn word_pop_n(&self, into: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        loop {
            let stack = self.here();
            let word = self.load(stack);
            let n = word.count.min(into.len());
            if word.stopped || n == 0 {
                return 0;
            }
            for (i, place) in into[..n].iter_mut().enumerate() {
                self.core.step(Point::Section);
                place.write(stack.slot(word.count - n + i));
            }
            if self.exchange(stack, word, word.count - n, word.busy, None) {
                self.core.step(Point::Section);
                return n;
            }
        }
    }

    /// Sets the busy bit of the current CPU's stack. With `object`, looks first whether that is on top.
    fn word_reserve(&self, object: Option<NonNull<u8>>) -> Result<&Stack, Push> {
        let rounds = if self.core.config.interrupts {
            0
        } else {
            ROUNDS
        };
        let mut round = 0;
        loop {
            let stack = self.here();
            let word = self.load(stack);
            if word.stopped {
                return Err(Push::Full);
            }
            if word.count > 0 && object == Some(stack.slot(word.count - 1)) {
                self.core.step(Point::Section);
                if stack.tid.get() == word.tid {
                    return Err(Push::OnTop);
                }
                continue;
            }
            self.core.step(Point::Section);
            if word.count >= stack.limit.get() {
                return Err(Push::Full);
            }
            if word.busy {
                self.core.arrays.stat(|s| s.contended += 1);
                if round == rounds {
                    return Err(Push::Full);
                }
                round += 1;
                self.core.relax(0);
            } else if self.exchange(stack, word, word.count, true, None) {
                return Ok(stack);
            }
        }
    }

    /// Stores the last of `objects` that there is room for above the count, and clears the busy bit.
    fn word_fill(&self, stack: &Stack, objects: &[NonNull<u8>]) -> usize {
        loop {
            let word = self.load(stack);
            self.core.step(Point::Section);
            let room = if word.stopped {
                0
            } else {
                stack.limit.get().saturating_sub(word.count)
            };
            let n = room.min(objects.len());
            for (i, object) in objects[objects.len() - n..].iter().enumerate() {
                self.core.step(Point::Section);
                stack.set_slot(word.count + i, *object);
            }
            if self.exchange(stack, word, word.count + n, false, None) {
                self.core.step(Point::Section);
                return n;
            }
        }
    }

    pub(super) fn word_push(&self, object: NonNull<u8>) -> Push {
        let careless = self.core.mutated(Mutation::PushWithoutBusy);
        let reserved = if careless {
            Ok(self.here())
        } else {
            self.word_reserve(Some(object))
        };
        match reserved.map(|stack| self.word_fill(stack, &[object])) {
            Ok(0) => Push::Full,
            Ok(_) => Push::Done,
            Err(refused) => refused,
        }
    }

    pub(super) fn word_push_n(&self, objects: &[NonNull<u8>]) -> usize {
        if objects.is_empty() {
            return 0;
        }
        self.word_reserve(None)
            .map_or(0, |stack| self.word_fill(stack, objects))
    }

    /// Where an object in a list keeps its link.
    fn link(&self, object: NonNull<u8>) -> NonNull<*mut u8> {
        // SAFETY: A4: whoever pushes an object gives eight aligned bytes at `link_offset`.
        unsafe { object.add(self.stacks.params.link_offset as usize) }.cast()
    }

    /// The link of an object that was claimed.
    pub(super) fn link_of(&self, object: NonNull<u8>) -> Option<NonNull<u8>> {
        // SAFETY: A4: as above; objects stay readable. Volatile, since a pop reads it before it knows that it may.
        NonNull::new(unsafe { self.link(object).read_volatile() })
    }

    /// One pop. The link is read before the exchange and followed by nobody before it has succeeded.
    pub(super) fn list_pop(&self) -> Option<NonNull<u8>> {
        loop {
            let stack = self.here();
            let word = self.load(stack);
            let object = word.head.filter(|_| !word.stopped)?;
            self.core.step(Point::Section);
            let next = self.link_of(object);
            if self.exchange(stack, word, word.count - 1, false, next) {
                self.core.step(Point::Section);
                return Some(object);
            }
        }
    }

    /// So many pops: links can not be followed before an exchange has claimed their object.
    pub(super) fn list_pop_n(&self, into: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        let mut n = 0;
        while n < into.len() {
            let Some(object) = self.list_pop() else { break };
            into[n].write(object);
            n += 1;
        }
        into[..n].reverse();
        n
    }

    pub(super) fn list_push(&self, object: NonNull<u8>) -> Push {
        loop {
            let stack = self.here();
            let word = self.load(stack);
            if word.stopped {
                return Push::Full;
            }
            if word.head == Some(object) {
                return Push::OnTop;
            }
            match self.list_link(stack, word, &[object]) {
                Some(0) => return Push::Full,
                Some(_) => return Push::Done,
                None => {}
            }
        }
    }

    pub(super) fn list_push_n(&self, objects: &[NonNull<u8>]) -> usize {
        loop {
            let stack = self.here();
            let word = self.load(stack);
            if word.stopped {
                return 0;
            }
            if let Some(n) = self.list_link(stack, word, objects) {
                return n;
            }
        }
    }

    /// Links the last of `objects` that there is room for in front of the list; `None` if the word has changed, and
    /// then their bytes are as before.
    fn list_link(&self, stack: &Stack, word: Word, objects: &[NonNull<u8>]) -> Option<usize> {
        self.core.step(Point::Section);
        let room = stack.limit.get().saturating_sub(word.count);
        let pushed = &objects[objects.len() - room.min(objects.len())..];
        if pushed.is_empty() {
            return Some(0);
        }
        let mut head = word.head;
        let mut before = Vec::with_capacity(pushed.len());
        for object in pushed {
            self.core.step(Point::Section);
            let link = self.link(*object);
            // SAFETY: A4: the object is the caller's until the exchange.
            unsafe {
                before.push(link.cast::<MaybeUninit<*mut u8>>().read());
                link.write(head.map_or(core::ptr::null_mut(), NonNull::as_ptr));
            }
            head = Some(*object);
        }
        if self.exchange(stack, word, word.count + pushed.len(), false, head) {
            self.core.step(Point::Section);
            return Some(pushed.len());
        }
        for (object, bytes) in pushed.iter().zip(before) {
            // SAFETY: A4: the object was not accepted, so it is the caller's still.
            unsafe {
                self.link(*object)
                    .cast::<MaybeUninit<*mut u8>>()
                    .write(bytes)
            };
        }
        None
    }
}
