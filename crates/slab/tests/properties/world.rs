//! The model and the machine side by side: every operation is done on both.

use super::ledger::{self, Host, Ledger, Owned, is_zero};
use super::operations::Op;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use flagstone_host::{Cpus, PageMap};
use flagstone_seeded::Machine;
use flagstone_slab::{
    CacheFlags, CacheHandle, CacheParams, Caches, KERNEL_CLASSES, NodeMask, Placement,
};
use flagstone_types::{AllocError, CpuId, Gfp, Nid};
use std::sync::atomic::AtomicU32;

const MAGIC: u64 = 0x5eed_0b1e_c7ed_c0de;

/// Constructed objects begin with a mark.
unsafe fn construct(object: NonNull<u8>) {
    // SAFETY: S7: objects with this constructor have at least eight bytes.
    unsafe { object.cast::<u64>().write(MAGIC) };
}

pub(crate) struct Made<'c, H: flagstone_host::Host> {
    handle: CacheHandle<'c, H>,
    size: usize,
    align: usize,
    constructed: bool,
    zeroed: bool,
    objects: Vec<Owned>,
}

/// The model and the machine side by side.
pub(crate) struct World<'c, 'm, const SHIFT: u32, const ORDER: u32> {
    pub(crate) machine: &'m Machine<SHIFT, ORDER>,
    pub(crate) caches: &'c Caches<Host<'m, SHIFT, ORDER>>,
    pub(crate) made: Vec<Made<'c, Host<'m, SHIFT, ORDER>>>,
    pub(crate) lumps: Vec<Owned>,
    pub(crate) ledger: Ledger,
    pub(crate) turn: AtomicU32,
}

impl<'m, const SHIFT: u32, const ORDER: u32> World<'_, 'm, SHIFT, ORDER> {
    fn create(&mut self, size: usize, align: u32, kind: u8, cpu: u8) {
        let align = if align == 0 { 0 } else { 1usize << align };
        let constructed = kind & 3 == 0 && size >= 8;
        let zeroed = !constructed && kind & 0x70 == 0x70;
        let name = format!("cache-{}", self.made.len());
        let mut params = CacheParams::new(&name, size, align);
        params.cpu_slabs = (cpu < 100).then_some(u32::from(cpu));
        params.flags = CacheFlags {
            typesafe_by_rcu: kind & 0x1c == 0x04 && !zeroed,
            reclaimable: kind & 0x20 != 0,
            hwcache_align: kind & 0x40 != 0,
            no_merge: kind & 0x80 != 0,
            zero_on_free: zeroed,
            dma: false,
        };
        if constructed {
            params.ctor = Some(construct);
        }
        match self.caches.create(&params) {
            Ok(handle) => self.made.push(Made {
                handle,
                size,
                align,
                constructed,
                zeroed,
                objects: Vec::new(),
            }),
            Err(error) => assert_eq!(error, AllocError::OutOfMemory, "{params:?}"),
        }
    }

    /// An object came out of cache number `at`.
    fn came(&mut self, at: usize, object: NonNull<u8>, zero: bool) {
        let made = &mut self.made[at];
        if made.constructed {
            // SAFETY: S7: the object is ours and was constructed.
            assert_eq!(unsafe { object.cast::<u64>().read() }, MAGIC);
        } else if zero {
            assert!(is_zero(object, made.size), "not zeroed");
        }
        let owned = self.ledger.take_filled(object, made.size, made.align);
        assert_eq!(
            self.caches.ksize(object).unwrap(),
            made.handle.usable_size()
        );
        made.objects.push(owned);
    }

    /// Object number `which` of cache number `at` is about to go back.
    fn goes(&mut self, at: usize, which: usize) -> NonNull<u8> {
        let made = &mut self.made[at];
        let owned = made.objects.swap_remove(which);
        let object = self.ledger.give_checked(owned);
        if made.constructed {
            // SAFETY: S7: back to its constructed state.
            unsafe { construct(object) };
        }
        object
    }

    fn pick(&self, cache: usize) -> Option<usize> {
        (!self.made.is_empty()).then(|| cache % self.made.len())
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        let caches = self.caches;
        let nodes = self.machine_nodes();
        match *op {
            Op::Create {
                size,
                align,
                kind,
                cpu,
            } if self.made.len() < 8 => {
                self.create(size, align.min(SHIFT), kind, cpu);
            }
            Op::Create { .. } => {}
            Op::Destroy(which) => {
                let Some(at) = self.pick(which) else { return };
                let made = self.made.swap_remove(at);
                let name = made.handle.name().to_owned();
                match caches.destroy(made.handle) {
                    Ok(()) => {
                        // Objects of a cache that others share are theirs to free now: give them to the allocator.
                        for owned in made.objects {
                            let object = self.ledger.give_checked(owned);
                            // SAFETY: the test owns the object.
                            unsafe { caches.kfree(object) };
                        }
                    }
                    Err(busy) => {
                        assert!(!made.objects.is_empty(), "{name}: {busy}");
                        assert_eq!(busy.objects, made.objects.len(), "{busy}");
                        self.made.push(Made {
                            handle: busy.cache,
                            ..made
                        });
                    }
                }
            }
            Op::Alloc { cache, zero } => {
                let Some(at) = self.pick(cache) else { return };
                let gfp = if zero {
                    Gfp::KERNEL | Gfp::ZERO
                } else {
                    Gfp::KERNEL
                };
                match caches.alloc(&self.made[at].handle, gfp) {
                    Ok(object) => self.came(at, object, zero),
                    Err(error) => assert_eq!(error, AllocError::OutOfMemory),
                }
            }
            Op::AllocNode { cache, nid, only } => {
                let Some(at) = self.pick(cache) else { return };
                let nid = Nid(nid % (nodes + 1));
                let gfp = if only {
                    Gfp::KERNEL | Gfp::THISNODE
                } else {
                    Gfp::KERNEL
                };
                match caches.alloc_node(&self.made[at].handle, gfp, nid) {
                    Ok(object) => {
                        assert!(!only || self.node_of(object) == nid);
                        self.came(at, object, false);
                    }
                    Err(AllocError::InvalidArgument) => assert_eq!(nid.0, nodes),
                    Err(error) => assert_eq!(error, AllocError::OutOfMemory),
                }
            }
            Op::Place { cache, how, mask } => {
                let Some(at) = self.pick(cache) else { return };
                let mask = NodeMask(mask >> (how >> 3));
                let placement = match how & 7 {
                    0 => Placement::Local,
                    4 | 5 => Placement::PreferredMany(mask),
                    1 => Placement::Preferred(Nid((mask.0 % u64::from(nodes)) as u16)),
                    2 => Placement::Bind(mask),
                    _ => Placement::Interleave {
                        mask,
                        last: &self.turn,
                    },
                };
                let some = (0..nodes).any(|n| mask.contains(Nid(n)));
                let needs_one = !matches!(placement, Placement::Local | Placement::Preferred(_));
                match caches.alloc_placed(&self.made[at].handle, Gfp::KERNEL, &placement) {
                    Ok(object) => {
                        let at_node = self.node_of(object);
                        let bound = matches!(placement, Placement::Bind(_));
                        assert!(!bound || mask.contains(at_node));
                        self.came(at, object, false);
                    }
                    Err(AllocError::InvalidArgument) => assert!(needs_one && !some),
                    Err(error) => assert_eq!(error, AllocError::OutOfMemory),
                }
            }
            Op::AllocBulk { cache, n } => {
                let Some(at) = self.pick(cache) else { return };
                let mut into = vec![MaybeUninit::uninit(); n];
                match caches.alloc_bulk(&self.made[at].handle, Gfp::KERNEL, &mut into) {
                    Ok(objects) => {
                        assert_eq!(objects.len(), n);
                        for object in objects.iter().copied() {
                            self.came(at, object, false);
                        }
                    }
                    Err(error) => assert_eq!(error, AllocError::OutOfMemory),
                }
            }
            Op::Free(which) => {
                let Some(at) = self.pick(which) else { return };
                let count = self.made[at].objects.len();
                if count == 0 {
                    return;
                }
                let object = self.goes(at, which / 8 % count);
                let handle = &self.made[at].handle;
                // SAFETY: the test owns the object.
                unsafe { caches.free(handle, object) };
                if self.made[at].zeroed {
                    assert!(is_zero(object, self.made[at].size), "not zeroed on free");
                }
            }
            Op::FreeBulk { cache, n } => {
                let Some(at) = self.pick(cache) else { return };
                let n = n.min(self.made[at].objects.len());
                let objects: Vec<_> = (0..n).map(|_| self.goes(at, 0)).collect();
                // SAFETY: the test owns the objects.
                unsafe { caches.free_bulk(&self.made[at].handle, &objects) };
            }
            Op::Kmalloc { size, zero } => {
                let gfp = if zero {
                    Gfp::KERNEL | Gfp::ZERO
                } else {
                    Gfp::KERNEL
                };
                match caches.kmalloc(size, gfp) {
                    Ok(object) => {
                        assert!(!zero || is_zero(object, size));
                        self.lump_came(object, size);
                    }
                    Err(error) => assert_eq!(error, AllocError::OutOfMemory),
                }
            }
            Op::Kfree(which) => {
                if self.lumps.is_empty() {
                    return;
                }
                let owned = self.lumps.swap_remove(which % self.lumps.len());
                let object = self.ledger.give_checked(owned);
                // SAFETY: the test owns it.
                unsafe { caches.kfree(object) };
            }
            Op::Krealloc { which, size } => {
                if self.lumps.is_empty() {
                    return;
                }
                let owned = self.lumps.swap_remove(which % self.lumps.len());
                // SAFETY: the test owns it.
                match unsafe { caches.krealloc(Some(owned.object), size, Gfp::KERNEL) } {
                    Ok(object) => {
                        self.ledger.give(owned);
                        Owned { object, ..owned }.check(owned.len.min(size));
                        // What stays in place keeps the alignment that it had.
                        let stays = object == owned.object;
                        self.lump_came(object, if stays { owned.len } else { size });
                    }
                    Err(error) => {
                        assert_eq!(error, AllocError::OutOfMemory);
                        self.lumps.push(owned);
                    }
                }
            }
            Op::Shrink(which) => {
                let Some(at) = self.pick(which) else { return };
                caches.shrink(&self.made[at].handle);
                let info = caches.info(&self.made[at].handle);
                assert!(!self.can_stop() || info.cached_objects == 0);
                assert_eq!(info.cpu_slabs, 0);
            }
            Op::ShrinkAll => {
                caches.shrink_all();
            }
            Op::Reap(arrays) => {
                caches.reap(arrays);
            }
            Op::SetArrays { cache, on } => {
                let Some(at) = self.pick(cache) else { return };
                assert!(caches.set_arrays(&self.made[at].handle, on));
                if !on {
                    assert_eq!(caches.info(&self.made[at].handle).cached_objects, 0);
                }
            }
            Op::SetCpuSlabs { cache, limit } => {
                let Some(at) = self.pick(cache) else { return };
                let handle = &self.made[at].handle;
                if caches.set_cpu_slabs(handle, limit) && limit == 0 {
                    assert_eq!(caches.info(handle).cpu_slabs, 0);
                }
            }
            Op::DrainCpu(cpu) => {
                let cpus = self.machine.possible_cpus();
                assert!(caches.drain_cpu(CpuId(cpu % cpus)));
            }
            Op::Move(cpu) => {
                let cpus = self.machine.possible_cpus();
                self.machine.set_cpu(CpuId(cpu % cpus));
            }
            Op::Check => self.check(),
        }
    }

    fn lump_came(&mut self, object: NonNull<u8>, size: usize) {
        let usable = self.caches.ksize(object).unwrap();
        assert!(usable >= size);
        let class = KERNEL_CLASSES.iter().find(|c| c.size >= size);
        let align = class.map_or(1 << SHIFT, |c| c.align);
        // All usable bytes are the owner's.
        self.lumps
            .push(self.ledger.take_filled(object, usable, align));
    }

    fn can_stop(&self) -> bool {
        true // outside of a run every form can
    }

    fn machine_nodes(&self) -> u16 {
        self.machine.nodes() as u16
    }

    fn node_of(&self, object: NonNull<u8>) -> Nid {
        use flagstone_host::PhysMem;
        let machine = self.machine;
        machine.nid(machine.pfn_of(object.as_ptr().addr()).unwrap())
    }

    pub(crate) fn check(&self) {
        ledger::validate(self.caches);
        for made in self.made.iter().filter(|m| !m.handle.name().is_empty()) {
            for owned in &made.objects {
                owned.check(owned.len);
            }
        }
        let mut shared = 0;
        for made in &self.made {
            shared += made.objects.len();
        }
        let owned = self.ledger.count();
        assert!(owned >= shared);
    }

    /// Frees everything in a scrambled order and destroys every cache.
    pub(crate) fn end(mut self) {
        while let Some(at) = (0..self.made.len()).find(|&at| !self.made[at].objects.is_empty()) {
            let count = self.made[at].objects.len();
            let object = self.goes(at, (count * 7 / 3) % count);
            // SAFETY: the test owns the object.
            unsafe { self.caches.free(&self.made[at].handle, object) };
        }
        for made in self.made.drain(..) {
            if let Err(busy) = self.caches.destroy(made.handle) {
                panic!("{busy}");
            }
        }
        for owned in self.lumps.drain(..) {
            // SAFETY: the test owns it.
            unsafe { self.caches.kfree(self.ledger.give_checked(owned)) };
        }
    }
}
