//! Virtual time: what things cost, and who paid.
//!
//! The figures are those of a server CPU of about 3 GHz, rounded; [`Costs`] has each with its source. They are there to compare
//! policies and counts of flushes, not to predict a machine. Each step of the machine underneath takes 10 ns by itself.

use core::cell::Cell;

/// What a thing costs, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A memory reference of a page walk that hits the second-level cache: 14 cycles (Intel Optimization Reference Manual, table 2-11 ff.).
    pub walk_reference: u64,
    /// Taking a page fault and returning: 1,000 cycles of exception entry and exit with mitigations (measured by lmbench's `lat_sig prot` less the handler;
    /// Linux's `pagefault` micro-benchmarks give 0.25 to 0.5 µs).
    pub fault: u64,
    /// Invalidating one address on the CPU itself: about 200 cycles for INVLPG with refills (Linux, `tlb_single_page_flush_ceiling` documentation: 100 to 200 ns).
    pub invalidate_address: u64,
    /// Invalidating an address space on the CPU itself: a CR3 write of about 300 cycles; refills are paid as walks.
    pub invalidate_all: u64,
    /// Sending an interrupt to another CPU: an x2APIC register write of some 300 cycles (Amit, "Optimizing the TLB Shootdown Algorithm", ATC 2017).
    pub send_interrupt: u64,
    /// Taking that interrupt: entry, handler, acknowledgement; about 2,000 cycles round trip on one socket (Amit et al., "Don't shoot down TLB shootdowns!", EuroSys 2020).
    pub take_interrupt: u64,
    /// Waiting for one more CPU of a broadcast without interrupts: an Arm `TLBI` with `DSB` takes 0.3 to 0.5 µs however many CPUs listen.
    pub broadcast: u64,
    /// A call to the hypervisor: about 1,200 cycles for VMCALL and back (KVM unit tests, `vmexit`).
    pub hypercall: u64,
    /// Copying 4 KiB that are in no cache: 10 GB/s.
    pub copy_page: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            walk_reference: 5,
            fault: 350,
            invalidate_address: 70,
            invalidate_all: 100,
            send_interrupt: 100,
            take_interrupt: 700,
            broadcast: 400,
            hypercall: 400,
            copy_page: 400,
        }
    }
}

/// Time that each CPU was busy with priced things.
#[derive(Debug, Default)]
pub(crate) struct Bill {
    busy: Vec<Cell<u64>>,
}

impl Bill {
    pub(crate) fn new(cpus: usize) -> Self {
        Self {
            busy: vec![Cell::new(0); cpus],
        }
    }

    pub(crate) fn charge(&self, cpu: usize, nanos: u64) {
        let busy = &self.busy[cpu];
        busy.set(busy.get() + nanos);
    }

    pub(crate) fn busy(&self, cpu: usize) -> u64 {
        self.busy[cpu].get()
    }
}
