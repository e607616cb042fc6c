//! A Rust program on Flagstone: collections through the global allocator, and an object cache for the type of which there are many.

use std::collections::BTreeMap;
use std::thread;

use flagstone_malloc::heap::heap;
use flagstone_slab::{CacheBox, ObjectCache};
use flagstone_types::AllocError;

#[global_allocator]
static ALLOCATOR: flagstone_malloc::Flagstone = flagstone_malloc::Flagstone;

/// What the cache is for.
#[derive(Debug)]
struct Order {
    number: u64,
    items: Vec<&'static str>,
}

fn main() -> Result<(), AllocError> {
    // Everything that Rust allocates comes from Flagstone.
    let words = "the quick brown fox jumps over the lazy dog";
    let counts = words.split(' ').fold(BTreeMap::new(), |mut counts, word| {
        *counts.entry(word.to_owned()).or_insert(0) += 1;
        counts
    });
    println!("{} words, `the` {} times", counts.len(), counts["the"]);

    // A cache of its own: orders lie together, and the cache knows how many there are.
    let orders = ObjectCache::new(heap()?, "order")?;
    let mut open: Vec<CacheBox<'_, _, Order>> = Vec::new();
    for number in 0..1000 {
        let order = Order {
            number,
            items: vec!["tea", "cups"],
        };
        open.push(orders.insert(order).map_err(|_| AllocError::OutOfMemory)?);
    }
    open.retain(|order| order.number % 10 == 0);
    let caches = orders.handle().caches();
    let in_use = |when: &str| {
        println!(
            "{when}: {} orders in use",
            caches.info(orders.handle()).used_objects()
        );
    };
    in_use("after 900 were closed");

    // Boxes may go to other threads, which free them there.
    thread::scope(|scope| {
        for _ in 0..4 {
            let part = open.split_off(open.len() - 25);
            scope.spawn(move || part.iter().map(|order| order.items.len()).sum::<usize>());
        }
    });
    in_use("after the threads");

    // What is left in `open` would borrow the cache to the end.
    drop(open);

    match orders.destroy() {
        Ok(()) => println!("the cache is gone"),
        Err(busy) => println!("{busy:?}"),
    }
    Ok(())
}
