//! What a machine is made of: architecture, CPUs, nodes, memory, abilities of its unit, schedule.

use crate::arch::Arch;
use crate::cost::{Bill, Costs};
use crate::machine::Machine;
use crate::mmu::Unit;
use core::cell::{Cell, RefCell};
use flagstone_host::MmuCaps;
use flagstone_seeded::{Policy, Rng, ThreadBound};
use flagstone_types::{Nid, Zone};

/// Makes a [`Machine`] with page frames of `2^SHIFT` bytes and largest blocks of `2^ORDER` frames.
#[derive(Clone, Debug)]
pub struct Builder<const SHIFT: u32 = 12, const ORDER: u32 = 9> {
    inner: flagstone_seeded::Builder<SHIFT, ORDER>,
    arch: Arch,
    caps: MmuCaps,
    seed: u64,
    cpus: usize,
    capacity: Option<usize>,
    guessing: Option<u32>,
    costs: Costs,
    replay: Option<String>,
}

/// What the unit of an ordinary machine of this architecture can do.
#[must_use]
pub fn usual_caps(arch: Arch) -> MmuCaps {
    let x86 = matches!(arch, Arch::X86_64 { .. } | Arch::X86Pae);
    MmuCaps {
        accessed: true,
        accessed_table: arch.has_table_accessed(),
        dirty: true,
        stray_dirty: false,
        huge_pmd: true,
        huge_pud: matches!(
            arch,
            Arch::X86_64 { .. }
                | Arch::Arm64 { granule: 12, .. }
                | Arch::Ppc64Radix { .. }
                | Arch::Riscv64 { .. }
        ),
        shadow_stack: matches!(arch, Arch::X86_64 { .. }),
        asid_bits: match arch {
            Arch::X86_64 { .. } => 12,
            Arch::X86Pae => 0,
            Arch::Arm64 { .. } | Arch::Riscv64 { .. } => 16,
            Arch::Ppc64Radix { .. } => 16,
        },
        broadcast: matches!(arch, Arch::Arm64 { .. } | Arch::Ppc64Radix { .. }),
        paravirtual: false,
        phys_bits: match arch {
            Arch::X86Pae => 36,
            Arch::X86_64 { .. } => 46,
            Arch::Arm64 { .. } => 48,
            Arch::Ppc64Radix { .. } => 51,
            Arch::Riscv64 { .. } => {
                if x86 {
                    46
                } else {
                    56
                }
            }
        },
    }
}

impl<const SHIFT: u32, const ORDER: u32> Builder<SHIFT, ORDER> {
    /// A machine of this architecture with two CPUs and one node with two largest blocks of memory, seed 0; tasks stay on their CPUs.
    ///
    /// # Panics
    /// If the architecture's pages are not frames of this machine.
    #[must_use]
    pub fn new(arch: Arch) -> Self {
        let page_shift = arch.geometry().page_shift;
        assert!(
            page_shift == SHIFT,
            "{arch} has pages of 2^{page_shift} bytes, the machine frames of 2^{SHIFT}"
        );
        Self {
            inner: flagstone_seeded::Builder::new()
                .interrupts(true)
                .pinned(true)
                .memory(2 << ORDER),
            arch,
            caps: usual_caps(arch),
            seed: 0,
            cpus: 2,
            capacity: None,
            guessing: None,
            costs: Costs::default(),
            replay: None,
        }
    }

    /// The seed of every choice.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self.inner = self.inner.seed(seed);
        self
    }

    /// How many CPUs, 1 to 256; spread evenly over the nodes.
    #[must_use]
    pub fn cpus(mut self, cpus: usize) -> Self {
        self.cpus = cpus;
        self.inner = self.inner.cpus(cpus);
        self
    }

    /// How many memory nodes, 1 to 64.
    #[must_use]
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.inner = self.inner.nodes(nodes);
        self
    }

    /// Frames of normal memory on each node that no [`Builder::zone`] says more about.
    #[must_use]
    pub fn memory(mut self, pages: usize) -> Self {
        self.inner = self.inner.memory(pages);
        self
    }

    /// Frames of `zone` on node `nid`.
    #[must_use]
    pub fn zone(mut self, nid: Nid, zone: Zone, pages: usize) -> Self {
        self.inner = self.inner.zone(nid, zone, pages);
        self
    }

    /// How switches are chosen; without this the seed chooses.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.inner = self.inner.policy(policy);
        self
    }

    /// Whether tasks stay on the CPU that they begin on (they do without this). If they move, a task makes its table active
    /// and uses it with interrupts blocked, as a kernel's scheduler would for it.
    #[must_use]
    pub fn pinned(mut self, pinned: bool) -> Self {
        self.inner = self.inner.pinned(pinned);
        self
    }

    /// How many of 256 switches preempt the task.
    #[must_use]
    pub fn preemption(mut self, of_256: u32) -> Self {
        self.inner = self.inner.preemption(of_256);
        self
    }

    /// What the unit can do, changed from what is usual for the architecture.
    #[must_use]
    pub fn caps(mut self, change: impl FnOnce(&mut MmuCaps)) -> Self {
        change(&mut self.caps);
        self
    }

    /// How many translations a CPU keeps; without this the seed chooses, 2 to 24.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn translations(mut self, capacity: usize) -> Self {
        assert!(capacity > 0, "a unit keeps at least one translation");
        self.capacity = Some(capacity);
        self
    }

    /// At how many of 256 host calls a unit loads something unasked; without this the seed chooses.
    #[must_use]
    pub fn guessing(mut self, of_256: u32) -> Self {
        self.guessing = Some(of_256);
        self
    }

    /// What things cost.
    #[must_use]
    pub fn costs(mut self, costs: Costs) -> Self {
        self.costs = costs;
        self
    }

    /// Steps after which a run is given up.
    #[must_use]
    pub fn step_limit(mut self, steps: u64) -> Self {
        self.inner = self.inner.step_limit(steps);
        self
    }

    /// The command that replays this machine's run, which a broken rule prints besides the environment variable of tests.
    #[must_use]
    pub fn replay(mut self, command: String) -> Self {
        self.replay = Some(command);
        self
    }

    /// Builds it.
    #[must_use]
    pub fn build(self) -> Machine<SHIFT, ORDER> {
        let rng = Rng::new(self.seed ^ 0x6d6d_7573);
        let capacity = self.capacity.unwrap_or_else(|| rng.pick(&[2, 6, 12, 24]));
        let guessing = self.guessing.unwrap_or_else(|| rng.pick(&[0, 8, 32, 96]));
        let unit = Unit::new(
            self.arch, self.caps, SHIFT, self.cpus, capacity, guessing, rng,
        );
        Machine {
            inner: self.inner.build(),
            unit: ThreadBound::new(RefCell::new(unit)),
            bill: ThreadBound::new(Bill::new(self.cpus)),
            costs: self.costs,
            replay: self.replay,
            found: ThreadBound::new(RefCell::new(None)),
            quiet: ThreadBound::new(Cell::new(false)),
        }
    }
}
