//! Rust's own collections on every CPU, through the global allocator.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::Dice;
use crate::crew;

const ENTRIES: u64 = 1000;

#[derive(Debug)]
#[repr(align(256))]
struct Aligned(u64);

fn work(cpu: usize) {
    let mut dice = Dice::new();
    let mut map = BTreeMap::<u64, String>::new();
    // 1009 is a prime, so the keys are all different.
    for n in 0..ENTRIES {
        map.insert(n * 7919 % 1009, format!("CPU {cpu}, entry {n}"));
    }
    let mut numbers = Vec::new();
    let mut sum = 0;
    for _ in 0..ENTRIES {
        let number = dice.next() >> 20;
        numbers.push(number);
        sum += number;
    }
    numbers.sort_unstable();
    assert!(numbers.is_sorted() && numbers.iter().sum::<u64>() == sum);
    for n in 0..ENTRIES {
        let text = map.remove(&(n * 7919 % 1009));
        assert_eq!(text, Some(format!("CPU {cpu}, entry {n}")));
    }
    assert!(map.is_empty());
    let boxes: Vec<_> = (0..100).map(|n| Box::new(Aligned(n))).collect();
    for (n, aligned) in boxes.iter().enumerate() {
        assert!(aligned.0 == n as u64 && (&raw const **aligned).addr() % 256 == 0);
    }
}

pub(super) fn run() {
    crew::run(work);
}
