//! What a machine is made of: CPUs, nodes, zones, memory, schedule.
//!
//! What is not said is drawn from the seed where every value is legal (schedule, interrupts, gaps between nodes),
//! and has a small default otherwise, so that thousands of machines a second can be built.

use crate::arrays::{ArrayForm, Mutation};
use crate::context::Core;
use crate::machine::Machine;
use crate::rng::Rng;
use crate::schedule::Policy;
use crate::thread_bound::ThreadBound;
use flagstone_host::MemmapCaps;
use flagstone_types::{Nid, Order, Zone};

/// Memory of a node: frames of one zone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) nid: Nid,
    pub(crate) zone: Zone,
    pub(crate) pages: usize,
    /// Not there at start.
    pub(crate) unadded: bool,
}

/// Memory of a device: not there at start, and its records are to be mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DevicePiece {
    pub(crate) nid: Nid,
    pub(crate) pages: usize,
    /// The first frame number is a multiple of so many frames.
    pub(crate) align: Order,
}

/// Everything that a machine is made with.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) seed: u64,
    pub(crate) cpus: usize,
    pub(crate) nodes: usize,
    pub(crate) page_shift: u32,
    pub(crate) max_order: u32,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) devices: Vec<DevicePiece>,
    pub(crate) memmap: MemmapCaps,
    pub(crate) policy: Option<Policy>,
    pub(crate) disturb: u32,
    pub(crate) interrupts: bool,
    pub(crate) pinned: bool,
    pub(crate) form: ArrayForm,
    pub(crate) mutation: Option<Mutation>,
    pub(crate) step_limit: u64,
    pub(crate) plain_spins: u32,
    pub(crate) print_log: bool,
}

impl Config {
    /// Plain arrays are right only if tasks stay where they are; others may be told to.
    pub(crate) fn may_migrate(&self) -> bool {
        self.form != ArrayForm::Plain && !self.pinned
    }
}

/// Makes a [`Machine`] with page frames of `2^SHIFT` bytes and largest blocks of `2^ORDER` frames.
#[derive(Clone, Debug)]
pub struct Builder<const SHIFT: u32 = 12, const ORDER: u32 = 6> {
    seed: u64,
    cpus: usize,
    nodes: usize,
    pages: usize,
    pieces: Vec<Piece>,
    devices: Vec<DevicePiece>,
    memmap: MemmapCaps,
    policy: Option<Policy>,
    disturb: Option<u32>,
    interrupts: Option<bool>,
    pinned: bool,
    form: ArrayForm,
    mutation: Option<Mutation>,
    step_limit: u64,
    print_log: bool,
}

impl<const SHIFT: u32, const ORDER: u32> Default for Builder<SHIFT, ORDER> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const SHIFT: u32, const ORDER: u32> Builder<SHIFT, ORDER> {
    /// A machine of two CPUs and one node with four largest blocks of memory, seed 0.
    #[must_use]
    pub fn new() -> Self {
        const {
            assert!(
                SHIFT == 12 || SHIFT == 14 || SHIFT == 16,
                "a page shift is 12, 14 or 16"
            )
        };
        const { assert!(ORDER <= 12, "the largest order is at most 12") };
        Self {
            seed: 0,
            cpus: 2,
            nodes: 1,
            pages: 4 << ORDER,
            pieces: Vec::new(),
            devices: Vec::new(),
            memmap: MemmapCaps::NONE,
            policy: None,
            disturb: None,
            interrupts: None,
            pinned: false,
            form: ArrayForm::Restartable,
            mutation: None,
            step_limit: 20_000_000,
            print_log: false,
        }
    }

    /// The seed of every choice.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How many CPUs, 1 to 256; spread evenly over the nodes.
    #[must_use]
    pub fn cpus(mut self, cpus: usize) -> Self {
        assert!(
            (1..=256).contains(&cpus),
            "{cpus} CPUs: 1 to 256 can be simulated"
        );
        self.cpus = cpus;
        self
    }

    /// How many memory nodes, 1 to 64.
    #[must_use]
    pub fn nodes(mut self, nodes: usize) -> Self {
        assert!(
            (1..=64).contains(&nodes),
            "{nodes} nodes: 1 to 64 can be simulated"
        );
        self.nodes = nodes;
        self
    }

    /// Frames of normal memory on each node that no [`Builder::zone`] says more about.
    #[must_use]
    pub fn memory(mut self, pages: usize) -> Self {
        self.pages = pages;
        self
    }

    /// Frames of `zone` on node `nid`; may be called several times, in the order of addresses. Each zone
    /// begins at a largest block; if `pages` is no multiple of one, the rest of its last block is absent.
    #[must_use]
    pub fn zone(mut self, nid: Nid, zone: Zone, pages: usize) -> Self {
        self.pieces.push(Piece {
            nid,
            zone,
            pages,
            unadded: false,
        });
        self
    }

    /// Frames that are not there at start: not in `boot_ranges`, not committed, but in
    /// [`Machine::unadded_ranges`] for a test to add. They come after what [`Builder::memory`]
    /// gives the node, unless [`Builder::zone`] says what it has.
    #[must_use]
    pub fn unadded(mut self, nid: Nid, zone: Zone, pages: usize) -> Self {
        self.pieces.push(Piece {
            nid,
            zone,
            pages,
            unadded: true,
        });
        self
    }

    /// Memory of a device, in [`Machine::device_ranges`] for a test to add, its first frame number a multiple of `2^align`. Its
    /// records are mapped by [`flagstone_host::VirtualMemmap`]. Takes memory of the test only where it is written.
    #[must_use]
    pub fn device(mut self, nid: Nid, pages: usize, align: Order) -> Self {
        self.devices.push(DevicePiece { nid, pages, align });
        self
    }

    /// What the machine says about sharing records; without this that it shares none.
    #[must_use]
    pub fn memmap(mut self, caps: MemmapCaps) -> Self {
        self.memmap = caps;
        self
    }

    /// How switches are chosen; without this the seed chooses, for each run anew.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// How many of 256 switches preempt the task or move it to another CPU; the others let
    /// another CPU go on. Without this the seed chooses.
    #[must_use]
    pub fn preemption(mut self, of_256: u32) -> Self {
        self.disturb = Some(of_256);
        self
    }

    /// Whether the machine has interrupts to block, as a kernel has: then locks and
    /// `irq_guard` keep their task on its CPU. Without them, as in a process, any moment may
    /// preempt. Without this the seed chooses.
    #[must_use]
    pub fn interrupts(mut self, interrupts: bool) -> Self {
        self.interrupts = Some(interrupts);
        self
    }

    /// Whether tasks stay on the CPU that they begin on: by turns, one task after the other.
    #[must_use]
    pub fn pinned(mut self, pinned: bool) -> Self {
        self.pinned = pinned;
        self
    }

    /// The form of its per-CPU arrays.
    #[must_use]
    pub fn form(mut self, form: ArrayForm) -> Self {
        self.form = form;
        self
    }

    /// Breaks the arrays on purpose, to see whether a test finds it.
    #[must_use]
    pub fn mutation(mut self, mutation: Mutation) -> Self {
        self.mutation = Some(mutation);
        self
    }

    /// Steps after which a run is given up; 20 million without this.
    #[must_use]
    pub fn step_limit(mut self, steps: u64) -> Self {
        self.step_limit = steps;
        self
    }

    /// Prints messages of the layers as they come; they are kept in any case.
    #[must_use]
    pub fn print_log(mut self, print: bool) -> Self {
        self.print_log = print;
        self
    }

    /// Builds it.
    ///
    /// # Panics
    /// If a zone is on a node that does not exist, or there is no memory to simulate it with.
    #[must_use]
    pub fn build(self) -> Machine<SHIFT, ORDER> {
        let rng = Rng::new(self.seed ^ 0x5eed);
        let disturb = self.disturb.unwrap_or_else(|| rng.pick(&[4, 16, 40, 80]));
        let interrupts = self.interrupts.unwrap_or_else(|| rng.chance(128));
        let mut pieces = Vec::new();
        for nid in (0..self.nodes).map(|n| Nid(n as u16)) {
            let own = || self.pieces.iter().filter(move |p| p.nid == nid);
            if own().all(|p| p.unadded) {
                pieces.push(Piece {
                    nid,
                    zone: Zone::Normal,
                    pages: self.pages,
                    unadded: false,
                });
            }
            pieces.extend(own());
        }
        let nids = self.pieces.iter().map(|p| p.nid);
        let stray = nids
            .chain(self.devices.iter().map(|p| p.nid))
            .find(|nid| nid.index() >= self.nodes);
        assert!(
            stray.is_none(),
            "memory on a node that does not exist: {stray:?}"
        );
        let core = Core::new(Config {
            seed: self.seed,
            cpus: self.cpus,
            nodes: self.nodes,
            page_shift: SHIFT,
            max_order: ORDER,
            pieces,
            devices: self.devices,
            memmap: self.memmap,
            policy: self.policy,
            disturb,
            interrupts,
            pinned: self.pinned,
            form: self.form,
            mutation: self.mutation,
            step_limit: self.step_limit,
            plain_spins: 100_000,
            print_log: self.print_log,
        });
        Machine {
            core: ThreadBound::new(core),
        }
    }
}
