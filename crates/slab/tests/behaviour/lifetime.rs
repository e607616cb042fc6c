//! Making, sharing and ending caches.

use super::*;

#[test]
fn a_cache_with_live_objects_is_not_destroyed_and_says_how_many_it_has() {
    let machine = Machine::builder().cpus(2).build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let mut params = CacheParams::new("busy", 100, 8);
    params.flags.no_merge = true;
    let handle = caches.create(&params).unwrap();
    let mut all: Vec<_> = (0..50).map(|_| alloc(caches, &handle)).collect();
    for object in all.drain(7..) {
        free(caches, &handle, object);
    }
    let busy = caches.destroy(handle).unwrap_err();
    assert_eq!(busy.objects, 7);
    assert_eq!(busy.to_string(), "cache busy: 7 objects are still in use");
    let handle = busy.cache;
    let mut names = Vec::new();
    caches.slabinfo(|info| names.push(info.name().to_owned()));
    assert!(names.contains(&"busy".to_owned()), "it is listed as before");
    all.extend((0..50).map(|_| alloc(caches, &handle)));
    for object in all {
        free(caches, &handle, object);
    }
    ledger::validate(caches);
    caches.destroy(handle).unwrap();
}

#[test]
fn caches_of_one_shape_are_shared_unless_something_sets_them_apart() {
    let machine = machine();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let plain = CacheParams::new("first", 72, 8);
    let first = caches.create(&plain).unwrap();
    let is_shared = |change: &dyn Fn(&mut CacheParams<'_>)| {
        let mut params = CacheParams::new("second", 72, 8);
        change(&mut params);
        let second = caches.create(&params).unwrap();
        let shared = core::ptr::eq(&raw const *first, &raw const *second);
        caches.destroy(second).unwrap();
        shared
    };
    assert!(is_shared(&|_| {}));
    assert!(is_shared(&|p| p.size = 66), "the same stride");
    assert!(!is_shared(&|p| p.size = 73));
    assert!(!is_shared(&|p| p.align = 16));
    assert!(!is_shared(&|p| p.flags.no_merge = true));
    assert!(!is_shared(&|p| p.flags.typesafe_by_rcu = true));
    assert!(!is_shared(&|p| p.flags.reclaimable = true));
    assert!(!is_shared(&|p| p.flags.dma = true));
    assert!(!is_shared(&|p| p.flags.zero_on_free = true));
    assert!(!is_shared(&|p| p.ctor = Some(construct)));
    assert!(!is_shared(&|p| p.usercopy = UserCopy { offset: 0, size: 8 }));
    assert!(!is_shared(
        &|p| p.arrays = Some(ArrayTuning::linux(72, 4096, 1))
    ));
    // A cache whose arrays were asked for is not handed to others either.
    let mut params = CacheParams::new("own arrays", 136, 8);
    params.arrays = Some(ArrayTuning::linux(136, 4096, 1));
    let own = caches.create(&params).unwrap();
    let other = caches.create(&CacheParams::new("other", 136, 8)).unwrap();
    assert_eq!(other.name(), "other");
    // The end of one of two that share is not the end of the other.
    let second = caches.create(&plain).unwrap();
    let object = alloc(caches, &second);
    caches.destroy(second).unwrap();
    free(caches, &first, object);
    for handle in [own, other, first] {
        caches.destroy(handle).unwrap();
    }
    ledger::validate(caches);
}

#[test]
fn names_are_cut_at_31_bytes_between_characters() {
    let machine = machine();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let name = |text: &str| {
        let mut params = CacheParams::new(text, 24, 8);
        params.flags.no_merge = true;
        let handle = caches.create(&params).unwrap();
        let name = handle.name().to_owned();
        caches.destroy(handle).unwrap();
        name
    };
    assert_eq!(name("a_name"), "a_name");
    assert_eq!(name(""), "");
    assert_eq!(name(&"x".repeat(31)), "x".repeat(31));
    assert_eq!(name(&"x".repeat(40)), "x".repeat(31));
    assert_eq!(name(&format!("{}ü", "x".repeat(30))), "x".repeat(30));
}

#[test]
fn parameters_without_meaning_are_refused() {
    let machine = machine();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let before = ledger::used_pages(caches);
    let refused = |change: &dyn Fn(&mut CacheParams<'_>)| {
        let mut params = CacheParams::new("refused", 64, 8);
        change(&mut params);
        caches
            .create(&params)
            .map(|handle| handle.name().to_owned())
    };
    let invalid = Err(AllocError::InvalidArgument);
    assert_eq!(refused(&|p| p.size = 0), invalid);
    let empty_line = |p: &mut CacheParams<'_>| {
        p.size = 0;
        p.flags.hwcache_align = true;
    };
    assert_eq!(refused(&empty_line), invalid);
    assert_eq!(refused(&|p| p.align = 24), invalid);
    let odd_line = |p: &mut CacheParams<'_>| {
        p.align = 24;
        p.flags.hwcache_align = true;
    };
    assert_eq!(refused(&odd_line), invalid);
    assert_eq!(refused(&|p| p.align = 8192), invalid);
    assert_eq!(refused(&|p| p.size = 1 << 20), Err(AllocError::TooLarge));
    assert_eq!(refused(&|p| p.size = usize::MAX), Err(AllocError::TooLarge));
    let copy = |offset, size| move |p: &mut CacheParams<'_>| p.usercopy = UserCopy { offset, size };
    assert_eq!(refused(&copy(60, 5)), invalid);
    assert_eq!(refused(&copy(65, 0)), invalid);
    assert_eq!(refused(&copy(u32::MAX, 2)), invalid);
    let zeroed = |p: &mut CacheParams<'_>| {
        p.flags.zero_on_free = true;
        p.ctor = Some(construct);
    };
    assert_eq!(refused(&zeroed), invalid);
    let zeroed = |p: &mut CacheParams<'_>| {
        p.flags.zero_on_free = true;
        p.flags.typesafe_by_rcu = true;
    };
    assert_eq!(refused(&zeroed), invalid);
    ledger::expect_nothing_left(caches, before, false, false);
    assert!(refused(&copy(60, 4)).is_ok());
}
