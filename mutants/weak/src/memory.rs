//! Histories and views.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// Per location, the place in its history of the oldest value that may still be seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct View(Vec<u32>);

impl View {
    fn get(&self, location: usize) -> u32 {
        self.0.get(location).copied().unwrap_or(0)
    }

    fn raise(&mut self, location: usize, to: u32) {
        if self.0.len() <= location {
            self.0.resize(location + 1, 0);
        }
        self.0[location] = self.0[location].max(to);
    }

    fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }
}

#[derive(Debug)]
struct Message {
    value: u64,
    view: View,
}

#[derive(Debug, Default)]
struct History {
    /// Place of the first message that is kept.
    first: u32,
    messages: Vec<Message>,
}

impl History {
    fn last(&self) -> u32 {
        self.first + self.messages.len() as u32 - 1
    }

    fn at(&self, place: u32) -> &Message {
        &self.messages[(place - self.first) as usize]
    }
}

/// What a thread knows.
#[derive(Clone, Debug, Default)]
struct Knowledge {
    /// What it may still see.
    now: View,
    /// What it will know after an acquire fence.
    pending: View,
    /// What it knew at its last release fence.
    released: View,
}

/// What a location is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Use {
    Atomic,
    /// Ordinary writes.
    Write,
    /// Ordinary reads of a thread.
    Read(usize),
}

/// The memory of one run.
#[derive(Debug)]
pub(crate) struct Memory {
    threads: Vec<Knowledge>,
    places: HashMap<(usize, Use), usize>,
    histories: Vec<History>,
    /// What fences of `SeqCst` have published.
    fences: View,
}

const fn acquires(order: Ordering) -> bool {
    matches!(
        order,
        Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst
    )
}

const fn releases(order: Ordering) -> bool {
    matches!(
        order,
        Ordering::Release | Ordering::AcqRel | Ordering::SeqCst
    )
}

impl Memory {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            threads: vec![Knowledge::default(); threads],
            places: HashMap::new(),
            histories: Vec::new(),
            fences: View::default(),
        }
    }

    /// The number of a location. `now` is what is in memory: if that is not the newest value, an ordinary write has begun it anew.
    fn location(&mut self, at: usize, what: Use, now: u64) -> usize {
        let next = self.histories.len();
        let number = *self.places.entry((at, what)).or_insert(next);
        if number == next {
            self.histories.push(History::default());
        }
        let history = &mut self.histories[number];
        if history.messages.last().is_none_or(|m| m.value != now) {
            history.first += history.messages.len() as u32;
            history.messages.clear();
            history.messages.push(Message {
                value: now,
                view: View::default(),
            });
        }
        number
    }

    /// A load. `choose(n)` says which of the `n` values that may be seen it is, the newest being 0.
    pub(crate) fn load(
        &mut self,
        thread: usize,
        at: usize,
        now: u64,
        order: Ordering,
        choose: impl FnOnce(u32) -> u32,
    ) -> u64 {
        if !self.places.contains_key(&(at, Use::Atomic)) {
            // Never stored to in this run: there is one value, and nobody published it.
            return now;
        }
        let location = self.location(at, Use::Atomic, now);
        let history = &self.histories[location];
        let knowledge = &mut self.threads[thread];
        let oldest = knowledge.now.get(location).max(history.first);
        let place = history.last() - choose(history.last() - oldest + 1);
        let message = history.at(place);
        knowledge.now.raise(location, place);
        if acquires(order) {
            knowledge.now.join(&message.view);
        } else {
            knowledge.pending.join(&message.view);
        }
        message.value
    }

    /// A store, or the store of a read-modify-write, which reads `now` with the same order.
    pub(crate) fn store(
        &mut self,
        thread: usize,
        at: usize,
        now: u64,
        value: u64,
        order: Ordering,
        modifies: bool,
    ) {
        let location = self.location(at, Use::Atomic, now);
        if order == Ordering::SeqCst && modifies {
            self.fence(thread, Ordering::SeqCst);
        }
        if modifies {
            self.load(thread, at, now, order, |_| 0);
        }
        let history = &mut self.histories[location];
        let place = history.last() + 1;
        let knowledge = &mut self.threads[thread];
        knowledge.now.raise(location, place);
        let mut view = if releases(order) {
            knowledge.now.clone()
        } else {
            let mut view = knowledge.released.clone();
            view.raise(location, place);
            view
        };
        if modifies && let Some(last) = history.messages.last() {
            view.join(&last.view);
        }
        history.messages.push(Message { value, view });
        if order == Ordering::SeqCst {
            self.fence(thread, Ordering::SeqCst);
        }
    }

    pub(crate) fn fence(&mut self, thread: usize, order: Ordering) {
        let knowledge = &mut self.threads[thread];
        if acquires(order) {
            let pending = std::mem::take(&mut knowledge.pending);
            knowledge.now.join(&pending);
        }
        if order == Ordering::SeqCst {
            knowledge.now.join(&self.fences);
            self.fences = knowledge.now.clone();
        }
        if releases(order) {
            knowledge.released = knowledge.now.clone();
        }
    }

    /// An ordinary access; false if it races with one before it.
    pub(crate) fn mark(&mut self, thread: usize, at: usize, writes: bool) -> bool {
        let mut known = true;
        let written = self.mark_location(at, Use::Write);
        let last = self.histories[written].last();
        known &= self.threads[thread].now.get(written) >= last;
        if !writes {
            let own = self.mark_location(at, Use::Read(thread));
            self.advance(thread, own);
            return known;
        }
        for reader in 0..self.threads.len() {
            let read = self.mark_location(at, Use::Read(reader));
            let last = self.histories[read].last();
            known &= self.threads[thread].now.get(read) >= last;
        }
        self.advance(thread, written);
        known
    }

    fn mark_location(&mut self, at: usize, what: Use) -> usize {
        self.location(at, what, 0)
    }

    fn advance(&mut self, thread: usize, location: usize) {
        let history = &mut self.histories[location];
        history.messages.push(Message {
            value: 0,
            view: View::default(),
        });
        let last = history.last();
        self.threads[thread].now.raise(location, last);
    }
}
