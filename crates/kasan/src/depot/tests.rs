//! The depot against a map of stacks, from many threads, and with handles that it never gave.

use super::*;
use proptest::prelude::*;
use std::alloc::Layout;
use std::collections::HashMap;
use std::vec::Vec;

/// Zeroed memory with a depot in it.
struct Owned {
    depot: StackDepot,
    memory: NonNull<u8>,
    layout: Layout,
}

impl Owned {
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, 8).unwrap();
        // SAFETY: the size is not 0.
        let memory = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap();
        // SAFETY: D1: fresh zeroed memory that is freed with the depot.
        let depot = unsafe { StackDepot::new(memory, Bytes(bytes)).unwrap() };
        Self {
            depot,
            memory,
            layout,
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; nobody reaches the depot any more.
        unsafe { std::alloc::dealloc(self.memory.as_ptr(), self.layout) }
    }
}

fn stack() -> impl Strategy<Value = Vec<usize>> {
    let frame = prop_oneof![0x40_0000usize..0x40_0010, any::<usize>()];
    prop::collection::vec(frame, 0..70)
}

proptest! {
    #[test]
    fn a_depot_is_a_map_of_stacks(stacks in prop::collection::vec(stack(), 1..60), bytes in 64usize..20_000) {
        let owned = Owned::new(bytes & !7);
        let depot = &owned.depot;
        let mut model: HashMap<Vec<usize>, Handle> = HashMap::new();
        let mut dropped = 0;
        for stack in stacks.iter().chain(&stacks) {
            let kept = stack[..stack.len().min(crate::MAX_FRAMES)].to_vec();
            let handle = depot.insert(stack);
            match model.get(&kept) {
                Some(known) => prop_assert_eq!(handle, *known),
                None if stack.is_empty() => prop_assert!(handle.is_none()),
                None if handle.is_none() => dropped += 1,
                None => prop_assert!(model.insert(kept, handle).is_none()),
            }
        }
        for (stack, handle) in &model {
            prop_assert_eq!(depot.get(*handle), Stack::new(stack));
        }
        let stats = depot.stats();
        prop_assert_eq!(stats.stacks, model.len() as u64);
        prop_assert_eq!(stats.dropped, dropped);
        prop_assert_eq!(stats.wasted, 0);
        prop_assert!(stats.used.0 <= stats.capacity.0 && stats.capacity.0 <= bytes);
    }

    #[test]
    fn handles_that_were_not_given_are_no_stacks(stacks in prop::collection::vec(stack(), 1..40), forged in prop::collection::vec(any::<u32>(), 0..40)) {
        let owned = Owned::new(16 << 10);
        let given: Vec<Handle> = stacks.iter().map(|stack| owned.depot.insert(stack)).collect();
        for handle in (0..3000).chain(forged).map(Handle) {
            if !given.contains(&handle) {
                prop_assert!(owned.depot.get(handle).is_empty());
            }
        }
    }
}

#[test]
fn a_region_that_is_no_room_is_refused() {
    let mut words = [0u64; 16];
    let memory = NonNull::new(words.as_mut_ptr().cast::<u8>()).unwrap();
    for (offset, bytes) in [(0, 0), (0, 24), (1, 64)] {
        // SAFETY: D1: refused, or dropped at once.
        let depot = unsafe { StackDepot::new(memory.add(offset), Bytes(bytes)) };
        assert_eq!(depot.unwrap_err(), AllocError::InvalidArgument);
    }
}

#[test]
fn threads_get_one_handle_for_one_stack() {
    let owned = Owned::new(1 << 20);
    let depot = &owned.depot;
    let stacks: Vec<Vec<usize>> = (0..500usize)
        .map(|k| (0..1 + k % 9).map(|f| 0x1000 * k + f * 77 + 1).collect())
        .collect();
    let handles: Vec<Vec<Handle>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| stacks.iter().map(|stack| depot.insert(stack)).collect()))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    for (k, stack) in stacks.iter().enumerate() {
        assert!(handles.iter().all(|given| given[k] == handles[0][k]));
        assert_eq!(depot.get(handles[0][k]), Stack::new(stack));
    }
    assert_eq!(depot.stats().stacks, 500);
}
