//! Sweeps: of each operation the first, second, … allocation inside fails, until none is left to fail; nothing is lost on any of the ways.

mod ledger;

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use flagstone_frames::{FaultAttr, FaultCount};
use flagstone_seeded::Machine;
use flagstone_slab::{CacheParams, Caches};
use flagstone_types::{AllocError, Gfp, Nid, Order};
use ledger::Flavour;

const GFP: Gfp = Gfp::KERNEL.union(Gfp::NOWARN);

unsafe fn construct(object: NonNull<u8>) {
    // SAFETY: S7: objects with this constructor have at least eight bytes.
    unsafe { object.cast::<u64>().write(1) };
}

/// Does something that allocates and undoes it.
type Operation = fn(&'static str, &Caches<&Machine>) -> Result<(), AllocError>;

fn create(name: &'static str, caches: &Caches<&Machine>) -> Result<(), AllocError> {
    let mut params = CacheParams::new(name, 700, 8);
    params.ctor = Some(construct);
    caches.destroy(caches.create(&params)?).unwrap();
    Ok(())
}

fn objects(name: &'static str, caches: &Caches<&Machine>) -> Result<(), AllocError> {
    let handle = caches.create(&CacheParams::new(name, 520, 256))?;
    let mut all = Vec::new();
    let result = (0..40).try_for_each(|n| {
        let nid = Nid(n % 2);
        all.push(caches.alloc(&handle, GFP)?);
        all.push(caches.alloc_node(&handle, GFP | Gfp::ZERO, nid)?);
        Ok(())
    });
    for object in all {
        // SAFETY: ours.
        unsafe { caches.free(&handle, object) };
    }
    caches.destroy(handle).unwrap();
    result
}

fn bulk(name: &'static str, caches: &Caches<&Machine>) -> Result<(), AllocError> {
    let handle = caches.create(&CacheParams::new(name, 1000, 8))?;
    let mut into = [MaybeUninit::uninit(); 30];
    let result = match caches.alloc_bulk(&handle, GFP, &mut into) {
        Ok(objects) => {
            // SAFETY: ours.
            unsafe { caches.free_bulk(&handle, objects) };
            Ok(())
        }
        Err(error) => Err(error),
    };
    caches.destroy(handle).unwrap();
    result
}

fn kmalloc(_: &'static str, caches: &Caches<&Machine>) -> Result<(), AllocError> {
    let mut object = caches.kmalloc(20, GFP)?;
    for size in [100, 3000, 60_000] {
        // SAFETY: ours; on failure the old one stays.
        match unsafe { caches.krealloc(Some(object), size, GFP) } {
            Ok(larger) => object = larger,
            Err(error) => {
                // SAFETY: ours.
                unsafe { caches.kfree(object) };
                return Err(error);
            }
        }
    }
    // SAFETY: ours.
    unsafe { caches.kfree(object) };
    Ok(())
}

fn pages(_: &'static str, caches: &Caches<&Machine>) -> Result<(), AllocError> {
    let frames = caches.frames();
    let block = frames.alloc_pages(GFP, Order::ZERO, None)?;
    let run = frames.alloc_run(GFP, 5, None);
    frames.free_pages(block);
    frames.free_run(run?);
    Ok(())
}

const OPERATIONS: [(&str, Operation); 5] = [
    ("create", create),
    ("objects", objects),
    ("bulk", bulk),
    ("kmalloc", kmalloc),
    ("pages", pages),
];

/// Runs the operation with the n-th request at the point failing, for each n until none fails. Returns how many did.
fn sweep(
    (name, operation): (&'static str, Operation),
    arm: fn(&Caches<&Machine>, Option<&FaultAttr<'_>>),
    count: fn(&Caches<&Machine>) -> FaultCount,
) -> u64 {
    for n in 1..2000 {
        for random in [false, true] {
            let machine = Machine::builder().cpus(2).nodes(2).seed(n).build();
            let caches = ledger::boot(&machine, Flavour::Unshared.policy());
            caches.improvements().set_random_freelist(random);
            let before = ledger::used_pages(caches);
            arm(caches, Some(&FaultAttr::nth(n)));
            let result = operation(name, caches);
            let failed = count(caches).failed;
            arm(caches, None);
            assert!(result.is_ok() || failed == 1, "{name}: {result:?} unasked");
            assert!(result.is_ok() || result == Err(AllocError::OutOfMemory));
            ledger::validate(caches);
            ledger::expect_nothing_left(caches, before, true, random);
            if failed == 0 && !random {
                return n - 1;
            }
        }
    }
    panic!("no end");
}

#[test]
fn no_failed_object_leaves_anything_behind() {
    let points = OPERATIONS.map(|operation| {
        sweep(
            operation,
            |caches, attr| caches.set_failslab(attr).unwrap(),
            |caches| caches.failslab(),
        )
    });
    assert!(
        points[1] >= 80 && points[2] == 30 && points[3] >= 3,
        "{points:?}"
    );
    assert_eq!(points[4], 0, "pages are no objects");
}

#[test]
fn no_failed_page_leaves_anything_behind() {
    let points = OPERATIONS.map(|operation| {
        sweep(
            operation,
            |caches, attr| match attr {
                Some(attr) => caches.frames().fail_page_alloc().arm(attr),
                None => caches.frames().fail_page_alloc().disarm(),
            },
            |caches| caches.frames().fail_page_alloc().count(),
        )
    });
    assert!(points.iter().all(|n| *n > 0), "{points:?}");
    assert_eq!(points[4], 2);
}

#[test]
fn only_the_caches_that_were_named_fail() {
    let machine = Machine::builder().cpus(2).build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let attr = FaultAttr::parse("probability=100,times=-1,verbose=0,cache=kmalloc-*").unwrap();
    let (before, spared) = (
        caches.create(&CacheParams::new("spared", 64, 8)).unwrap(),
        caches.kmalloc(64, GFP).unwrap(),
    );
    caches.set_failslab(Some(&attr)).unwrap();
    let after = caches
        .create(&CacheParams::new("kmalloc-mine", 72, 8))
        .unwrap();
    assert!(caches.alloc(&before, GFP).is_ok());
    assert_eq!(caches.kmalloc(64, GFP), Err(AllocError::OutOfMemory));
    assert_eq!(caches.alloc(&after, GFP), Err(AllocError::OutOfMemory));
    assert!(caches.alloc(&after, GFP | Gfp::NOFAIL).is_ok());
    assert_eq!(caches.failslab().failed, 2);
    caches.set_failslab(None).unwrap();
    assert!(caches.kmalloc(64, GFP).is_ok() && caches.alloc(&after, GFP).is_ok());
    assert!(
        caches.info(caches.kmalloc_cache(64).unwrap()).limit > 0,
        "arrays are on again"
    );
    // SAFETY: ours.
    unsafe { caches.kfree(spared) };
    let long = FaultAttr {
        cache: "a-pattern-of-more-than-thirty-one-bytes",
        ..attr
    };
    assert_eq!(
        caches.set_failslab(Some(&long)),
        Err(AllocError::InvalidArgument)
    );
}
