//! CPUs and nodes: how many, which, how far apart.

use flagstone_types::{CpuId, Nid};

/// The CPUs and memory nodes of a machine. All but [`Cpus::is_online`] and the two `current` hints never change (C4).
pub trait Cpus {
    /// Keeps this CPU's interrupts from running while it exists. Nests; the depth is
    /// a counter of the CPU, not of the guard, so guards may be dropped in any order.
    /// Zero-sized and without effect where there are no interrupts.
    type IrqGuard<'a>
    where
        Self: 'a;

    /// CPUs that could ever run: ids are `0..possible_cpus()`.
    fn possible_cpus(&self) -> u32;

    /// Whether `cpu` runs now. Changes only between the steps of a layer's hotplug callbacks.
    fn is_online(&self, cpu: CpuId) -> bool;

    /// The CPU that this runs on: below [`Cpus::possible_cpus`]. A hint in a process or without an
    /// [`Cpus::IrqGuard`]: it may be another one by the time it is used.
    fn current_cpu(&self) -> CpuId;

    /// Memory nodes: ids are `0..nodes()`, at least 1.
    fn nodes(&self) -> u32;

    /// The node that `cpu` is nearest to; advice where CPU ids are concurrency ids.
    fn node_of(&self, cpu: CpuId) -> Nid;

    /// The node that this runs on; a hint. Where CPU ids are concurrency ids it does not come from them.
    fn current_node(&self) -> Nid {
        self.node_of(self.current_cpu())
    }

    /// How far the memory of `to` is from `from`, in the units of ACPI's SLIT: 10 is local.
    fn distance(&self, from: Nid, to: Nid) -> u32;

    /// Blocks this CPU's interrupts until the guard is dropped.
    fn irq_guard(&self) -> Self::IrqGuard<'_>;

    /// Called by a waiting loop: tells the CPU, the hypervisor or the scheduler that
    /// nothing useful is being done. `spins` counts the rounds so far.
    fn relax(&self, spins: u32);
}
