//! The depot's chains under every order of memory accesses that the language allows, by the model checker: its own atomics under the very code that runs.
//!
//! Records are plain cells here, so that a read that is not ordered after the write is found, not only one that gets a wrong value.

use core::num::NonZeroU32;
use std::sync::Arc;
use std::vec::Vec;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use super::chain::{Arena, Inserted, holds, insert};
use crate::stack::Packed;

const WORDS: u32 = 12;

struct Model {
    /// One bucket: every stack meets every other.
    newest: AtomicU32,
    top: AtomicU32,
    words: Vec<UnsafeCell<u64>>,
}

// SAFETY: D2, D3: a word is written by who reserved it, before it is published. The model checker watches this.
unsafe impl Sync for Model {}
// SAFETY: as above.
unsafe impl Send for Model {}

impl Model {
    fn new() -> Self {
        Self {
            newest: AtomicU32::new(0),
            top: AtomicU32::new(1),
            words: (0..WORDS).map(|_| UnsafeCell::new(0)).collect(),
        }
    }
}

impl Arena for Model {
    fn buckets(&self) -> u32 {
        1
    }

    fn newest(&self, _: u32) -> u32 {
        self.newest.load(Ordering::Acquire)
    }

    fn publish(&self, _: u32, newest: u32, record: NonZeroU32) -> Result<(), u32> {
        self.newest
            .compare_exchange(newest, record.get(), Ordering::Release, Ordering::Acquire)
            .map(|_| ())
    }

    fn reserve(&self, words: u32) -> Option<NonZeroU32> {
        let from = self.top.fetch_add(words, Ordering::Relaxed);
        (from + words <= WORDS).then(|| NonZeroU32::new(from).unwrap())
    }

    fn read(&self, word: u32) -> u64 {
        // SAFETY: D2: published, or ours; the model checker watches this.
        self.words[word as usize].with(|value| unsafe { *value })
    }

    fn write(&self, word: u32, value: u64) {
        // SAFETY: D3: reserved by us; the model checker watches this.
        self.words[word as usize].with_mut(|at| unsafe { *at = value });
    }
}

fn run(stacks: &'static [&'static [&'static [usize]]]) {
    loom::model(move || {
        let model = Arc::new(Model::new());
        let threads: Vec<_> = stacks
            .iter()
            .map(|stacks| {
                let model = model.clone();
                thread::spawn(move || {
                    stacks
                        .iter()
                        .map(|stack| (*stack, insert(&*model, &Packed::new(stack))))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let all: Vec<_> = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect();
        let record = |inserted| match inserted {
            Inserted::Found { record, .. } | Inserted::New(record) => record,
            Inserted::Full => panic!("there is room for all"),
        };
        for (stack, inserted) in &all {
            assert!(holds(&*model, Packed::new(stack).hash(), record(*inserted)));
            for (other, given) in &all {
                // D5
                assert_eq!(stack == other, record(*inserted) == record(*given));
            }
            let new = |(other, given): &&(&[usize], Inserted)| {
                other == stack && matches!(given, Inserted::New(_))
            };
            assert_eq!(all.iter().filter(new).count(), 1);
        }
    });
}

#[test]
fn two_contexts_that_store_one_stack_get_one_handle() {
    run(&[&[&[1, 2]], &[&[1, 2]]]);
}

#[test]
fn two_contexts_that_store_two_stacks_in_turn_keep_both() {
    run(&[&[&[1, 2], &[3]], &[&[3], &[1, 2]]]);
}

#[test]
fn three_contexts_keep_each_stack_once() {
    run(&[&[&[1]], &[&[2]], &[&[1]]]);
}
