//! One behaviour of arrays each, in one thread that stays on its CPU.

use core::mem::MaybeUninit;
use std::vec::Vec;

use flagstone_host::{ArrayParams, CpuCache, Cpus as _, Host, Push};

use super::super::hammer::run_on;
use super::super::room::MOST_SLOTS;
use super::super::tests::ALONE;
use super::super::{
    ArrayForm, ExchangeLock, Plain, Process, ProcessWith, Restartable, TransactionArray,
    TransactionList,
};
use super::*;
use core::ptr::NonNull;
use flagstone_types::AllocError;

fn objects(n: usize) -> Vec<NonNull<u8>> {
    let words: &'static mut [[u64; 2]] = Vec::leak(std::vec![[0; 2]; n]);
    words.iter_mut().map(|w| NonNull::from(w).cast()).collect()
}

fn pop_n<A: CpuCache>(array: &A, room: usize) -> Vec<NonNull<u8>> {
    let mut into = std::vec![MaybeUninit::uninit(); room];
    let taken = array.pop_n(&mut into);
    // SAFETY: A1, the first `taken` were filled.
    into[..taken]
        .iter()
        .map(|o| unsafe { o.assume_init() })
        .collect()
}

/// What every form does, seen from one thread on one CPU.
fn behaves<F: ArrayForm>() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let _ = run_on(0);
    let host = ProcessWith::<F>::start();
    let array = host
        .new_array(ArrayParams {
            capacity: 10,
            link_offset: 8,
        })
        .unwrap();
    assert_ne!(array.tag(), 0);
    let all = objects(12);
    // SAFETY: the objects are ours and have room for a link, here and below.
    let push = |n: usize| unsafe { array.push(all[n]) };
    assert_eq!(push(0), Push::Full, "a new array's limit is 0");
    assert_eq!(array.pop(), None);
    let cpus = host.possible_cpus();
    (0..cpus).for_each(|cpu| array.set_limit(CpuId(cpu), 99));
    assert_eq!(array.limit(CpuId(0)), 10, "a limit is at most the capacity");
    (0..cpus).for_each(|cpu| array.set_limit(CpuId(cpu), 4));
    assert_eq!([push(0), push(1), push(2)], [Push::Done; 3]);
    assert_eq!(push(2), Push::OnTop);
    assert_eq!(push(3), Push::Done);
    assert_eq!(push(4), Push::Full);
    assert_eq!(
        push(3),
        Push::OnTop,
        "a double free is told from a full stack"
    );
    assert_eq!((0..cpus).map(|cpu| array.len(CpuId(cpu))).sum::<u32>(), 4);
    assert_eq!(array.pop(), Some(all[3]));
    assert_eq!(pop_n(&array, 2), [all[1], all[2]], "the deepest first");
    assert_eq!(pop_n(&array, 5), [all[0]]);
    assert_eq!(pop_n(&array, 5), []);
    (0..cpus).for_each(|cpu| array.set_limit(CpuId(cpu), 5));
    assert_eq!(push(9), Push::Done);
    // SAFETY: as above.
    let taken = unsafe { array.push_n(&all[..7]) };
    assert_eq!(taken, 4, "as many as there is room for");
    // SAFETY: as above.
    assert_eq!(unsafe { array.push_n(&all[7..8]) }, 0);
    assert_eq!(
        pop_n(&array, 3),
        [all[4], all[5], all[6]],
        "from the end, the last on top"
    );
    // SAFETY: as above.
    assert_eq!(unsafe { array.push_n(&[]) }, 0);
    assert_eq!(pop_n(&array, 0), []);

    let stopped = host.stop_arrays().unwrap();
    assert_eq!((array.pop(), push(8)), (None, Push::Full), "stopped");
    let again = host.stop_arrays().unwrap();
    drop(stopped);
    assert_eq!(array.pop(), None, "the other stop still holds");
    let mut drained = Vec::new();
    for cpu in 0..cpus {
        host.drain(&again, &array, CpuId(cpu), &mut |objects| {
            drained.extend_from_slice(objects)
        });
    }
    assert_eq!(drained, [all[9], all[3]]);
    drop(again);
    assert_eq!((array.pop(), push(8)), (None, Push::Done));
    (0..cpus).for_each(|cpu| array.set_limit(CpuId(cpu), 0));
    assert_eq!(push(7), Push::Full, "limit 0");
    assert_eq!(array.pop(), Some(all[8]), "what is in stays poppable");
}

#[test]
fn restartable_arrays_behave() {
    behaves::<Restartable>();
}

#[test]
fn exchange_arrays_behave() {
    behaves::<ExchangeLock>();
}

#[test]
fn transaction_arrays_behave() {
    behaves::<TransactionArray>();
}

#[test]
fn transaction_lists_behave() {
    behaves::<TransactionList>();
}

#[test]
fn plain_arrays_behave() {
    behaves::<Plain>();
}

#[test]
fn places_are_used_again_and_clean() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let host = Process::start();
    let params = ArrayParams {
        capacity: 777,
        link_offset: 0,
    };
    let array = host.new_array(params).unwrap();
    (0..host.possible_cpus()).for_each(|cpu| array.set_limit(CpuId(cpu), 700));
    let tag = array.tag();
    // SAFETY: the object is ours.
    assert_eq!(unsafe { array.push(objects(1)[0]) }, Push::Done);
    drop(array);
    let array = host.new_array(params).unwrap();
    assert_eq!(array.tag(), tag);
    for cpu in 0..host.possible_cpus() {
        assert_eq!((array.len(CpuId(cpu)), array.limit(CpuId(cpu))), (0, 0));
    }
}

#[test]
fn arrays_that_can_not_be_are_refused() {
    crate::process::hammer::again("process::arrays::tests::used_up", &[]);
}

#[test]
#[ignore = "run by another test in a process of its own, which it uses up"]
fn used_up() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let host = Process::start();
    let make = |capacity| {
        host.new_array(ArrayParams {
            capacity,
            link_offset: 0,
        })
    };
    assert_eq!(make(MOST_SLOTS + 1).unwrap_err(), AllocError::TooLarge);
    assert_eq!(make(u32::MAX).unwrap_err(), AllocError::TooLarge);
    assert_eq!(
        make(MOST_SLOTS).unwrap_err(),
        AllocError::Exists,
        "too large a share"
    );
    // Large arrays leave room for small ones.
    let mut many = Vec::new();
    for capacity in [2000, 200, 20, 6] {
        let before = many.len();
        let error = loop {
            match make(capacity) {
                Ok(array) => many.push(array),
                Err(error) => break error,
            }
        };
        assert_eq!(error, AllocError::Exists);
        assert!(
            many.len() - before > 50,
            "{} of {capacity}",
            many.len() - before
        );
    }
    drop(many);
    drop(make(2000).unwrap());
}

#[test]
fn stops_for_vfork_need_no_barrier_and_nest_with_others() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let _ = run_on(0);
    let host = Process::start();
    let array = host
        .new_array(ArrayParams {
            capacity: 4,
            link_offset: 0,
        })
        .unwrap();
    (0..host.possible_cpus()).for_each(|cpu| array.set_limit(CpuId(cpu), 4));
    let object = objects(1)[0];
    host.stop_for_vfork();
    if host.mode() != Mode::Exchange {
        // SAFETY: the object is ours.
        assert_eq!(unsafe { array.push(object) }, Push::Full);
    }
    drop(host.stop_arrays());
    if host.mode() != Mode::Exchange {
        // SAFETY: the object is ours.
        let pushed = unsafe { array.push(object) };
        assert_eq!(pushed, Push::Full, "the child may still run");
    }
    host.restart_after_vfork();
    // SAFETY: the object is ours.
    assert_eq!(unsafe { array.push(object) }, Push::Done);
    assert_eq!(array.pop(), Some(object));
}

#[test]
fn a_cpu_without_a_slice_is_harmless() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let host = Process::start();
    let array = host
        .new_array(ArrayParams {
            capacity: 4,
            link_offset: 0,
        })
        .unwrap();
    let far = CpuId(1 << 20);
    array.set_limit(far, 3);
    assert_eq!((array.limit(far), array.len(far)), (0, 0));
    let mut array = array;
    host.drain_unshared(&mut array, far, &mut |_| panic!("nothing is there"));
}
