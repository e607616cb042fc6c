//! The kernel's own mappings: entry areas where they were said to be, with pages around them that are not there, gates and descriptors that can not be
//! written; code that can not be written under any address, data that can not be executed.

use crate::access::{Who, try_exec, try_read, try_write};
use crate::direct::DIRECT;
use crate::entry_area::{AREA, guards, pages, place};
use crate::kernel::Kernel;
use crate::layout::{ENTRY_AREAS, IMAGE, SPAN};
use crate::per_cpu::Area;
use crate::{crew, memory};
use flagstone_host::Cpus;
use flagstone_types::VirtAddr;
use x86_64::instructions::tables::{sgdt, sidt};

fn can_write(at: usize) -> bool {
    let Ok(value) = try_read(Who::Kernel, VirtAddr(at)) else {
        return false;
    };
    // SAFETY: what was read is written, to what nobody changes meanwhile, or the run ends.
    unsafe { try_write(Who::Kernel, VirtAddr(at), value) }.is_ok()
}

/// What a CPU's registers say, on that CPU.
fn registers(cpu: usize) {
    assert_eq!(sidt().base.as_u64() as usize, ENTRY_AREAS);
    let at = sgdt().base.as_u64() as usize;
    assert!(at >= place(cpu) && at < place(cpu) + 4096);
}

fn areas() {
    crew::run(registers);
    assert!(!can_write(ENTRY_AREAS), "gates can be written");
    for (cpu, area) in Area::all().enumerate() {
        let at = place(cpu);
        super::say!("entry area of CPU {cpu}: {at:#x}");
        assert!(at > ENTRY_AREAS && at + AREA <= ENTRY_AREAS + SPAN);
        for other in (0..cpu).map(place) {
            assert!(at >= other + AREA || other >= at + AREA, "areas overlap");
        }
        for guard in guards() {
            let read = try_read(Who::Kernel, VirtAddr(at + guard));
            assert!(read.is_err(), "something is at {guard:#x} of an area");
        }
        for page in pages() {
            assert!(try_read(Who::Kernel, VirtAddr(at + page)).is_ok());
            assert!(try_read(Who::User, VirtAddr(at + page)).is_err());
        }
        assert!(!can_write(at), "descriptors can be written");
        assert!(area.online.load(core::sync::atomic::Ordering::Relaxed));
    }
}

fn image() {
    let code = run as *const () as usize;
    let constant = super::TRIALS.as_ptr().addr();
    let more_code = memory::end as *const () as usize;
    for at in [code, constant, more_code].map(|at| at & !7) {
        assert!(!can_write(at), "what is constant can be written");
        let alias = DIRECT + (at - IMAGE);
        assert!(
            !can_write(alias),
            "it can be written where memory is mapped"
        );
        // SAFETY: it is refused, or the run ends.
        assert!(unsafe { try_exec(Who::Kernel, VirtAddr(alias)) }.is_err());
    }
    static VARIABLE: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0xc3);
    let at = VARIABLE.as_ptr().addr();
    assert!(can_write(at) && can_write(DIRECT + (at - IMAGE)));
    for at in [at, DIRECT + (at - IMAGE)] {
        // SAFETY: a return instruction is there.
        let ran = unsafe { try_exec(Who::Kernel, VirtAddr(at)) };
        assert!(ran.is_err(), "a variable was executed");
    }
    assert!(
        try_read(Who::Kernel, VirtAddr(0)).is_err(),
        "there is something at 0"
    );
}

pub(super) fn run() {
    areas();
    let _guard = Kernel.irq_guard();
    image();
}
