//! From the first instruction of Rust to a machine with all CPUs running.

use core::alloc::Layout;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::direct;
use crate::features::{self, Features};
use crate::kernel::Kernel;
use crate::madt::ApicIds;
use crate::per_cpu::{AREA_BYTES, Area, MOST_CPUS};
use crate::serial::{self, Outcome};
use crate::start_info::StartInfo;
use crate::trap::VECTORS;
use crate::{
    apic, clock, command_line, crew, descriptors, entry_area, interrupts, memory, services, trial,
    unit,
};
use flagstone_host::{Level, Log, PageMap};
use flagstone_types::AllocError;
use x86_64::VirtAddr;
use x86_64::registers::control::Cr4;
use x86_64::registers::model_specific::GsBase;

core::arch::global_asm!(include_str!("asm/start.s"), options(att_syntax));
core::arch::global_asm!(include_str!("asm/cpu_start.s"), options(att_syntax));
core::arch::global_asm!(include_str!("asm/trap.s"), options(att_syntax));
core::arch::global_asm!(include_str!("asm/memory.s"), options(att_syntax));

unsafe extern "C" {
    static flagstone_trap_entries: [u64; VECTORS];
    static flagstone_tables_direct: [AtomicU64; 512];
    static flagstone_image_end: u8;
    static flagstone_cpu_start: u8;
    static flagstone_cpu_start_end: u8;
    static flagstone_cpu_start_words: u8;
}

/// Where the code that starts a CPU is copied to: a page below 1 MiB, which is nobody's (M2).
const CPU_START_PAGE: u8 = 8;
/// Bytes of the stack of each further CPU.
const STACK: usize = 128 << 10;
/// Bytes of the boot pool that a CPU needs.
const CPU_BYTES: usize = AREA_BYTES + descriptors::STACKS_BYTES + entry_area::POOL_BYTES + STACK;
/// Bytes of the boot pool for structures of the layers.
const STRUCTURES: usize = 1 << 20;
/// How long a CPU may take to start, in nanoseconds: an emulator may be slow.
const PATIENCE: u64 = 5_000_000_000;
const MILLISECOND: u64 = 1_000_000;

/// Called by the start code on the first CPU.
///
/// # Safety
/// Once, with the address that the loader gave.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flagstone_main(start_info: u32) -> ! {
    serial::begin();
    // SAFETY: the loader's address, and nothing was written yet.
    let Some(info) = (unsafe { StartInfo::read(start_info) }) else {
        serial::last_line(format_args!(
            "no start information of PVH with a memory map"
        ));
        serial::exit(Outcome::Failed);
    };
    // SAFETY: this is the first CPU, alone.
    if let Err(error) = unsafe { set_up(&info) } {
        serial::last_line(format_args!("the machine could not be set up: {error}"));
        serial::exit(Outcome::Failed);
    }
    trial::run();
    serial::exit(Outcome::Passed);
}

/// Memory, areas, tables, clock, then the other CPUs.
///
/// # Safety
/// Once, on the first CPU.
unsafe fn set_up(info: &StartInfo) -> Result<(), AllocError> {
    features::detect();
    if let Some(seed) = command_line::number("seed") {
        services::seed(seed);
    }
    // SAFETY: M1: tables may be added to.
    let reach = unsafe { map_high_memory() };
    let read = |at: u64| {
        if at < reach {
            // SAFETY: M1: physical memory below the reach is mapped, and so far nobody writes to what the firmware left.
            unsafe { direct::pointer(at).read_volatile() }
        } else {
            0
        }
    };
    let ids = ApicIds::find(info.rsdp, &read);
    let cpus = ids.as_slice().len().clamp(1, MOST_CPUS);
    let pool = STRUCTURES + cpus * CPU_BYTES;
    // SAFETY: once, before anything else; the linker script defines the end.
    unsafe {
        let image_end = (&raw const flagstone_image_end).addr() as u64;
        if !memory::prepare(info, image_end, pool as u64, reach) {
            return Err(AllocError::OutOfMemory);
        }
        descriptors::make_gates(&flagstone_trap_entries);
    }
    apic::silence_board();
    let own = apic::id();
    let first = make_area(own)?;
    for &id in ids
        .as_slice()
        .iter()
        .filter(|&&id| id != own)
        .take(MOST_CPUS - 1)
    {
        make_area(id)?;
    }
    // SAFETY: the first CPU's own area.
    unsafe { enter(first) };
    clock::calibrate();
    for area in Area::all().skip(1) {
        // SAFETY: this CPU is the only one that starts others, one at a time.
        unsafe { start(area)? };
    }
    // SAFETY: I2: the first block of this CPU, since its start.
    unsafe { interrupts::unblock() };
    Ok(())
}

/// Maps what lies above 4 GiB, in pages of 1 GiB, if the CPU has them. Returns the end of what is mapped.
///
/// # Safety
/// Once, on the first CPU.
unsafe fn map_high_memory() -> u64 {
    const LOW: usize = 4;
    if !features::features().contains(Features::GIB_PAGES) {
        return (LOW as u64) << 30;
    }
    // SAFETY: the start code's table, through its identity mapping (M1); entries that were empty need no flush.
    let table = unsafe { &flagstone_tables_direct };
    for (gib, entry) in table.iter().enumerate().skip(LOW) {
        /// Present, writable, large.
        const FLAGS: u64 = 0x83;
        entry.store((gib as u64) << 30 | FLAGS, Ordering::Relaxed);
    }
    direct::REACH
}

fn make_area(apic_id: u8) -> Result<&'static Area, AllocError> {
    let area = Area::make(apic_id)?;
    // SAFETY: P3: the CPU does not run yet, or is this one, which does not use its descriptors yet.
    unsafe { (*area.descriptors.get()).make()? };
    Ok(area)
}

/// Makes a CPU find its area and its tables.
///
/// # Safety
/// Once on each CPU, with its own area.
unsafe fn enter(area: &'static Area) {
    GsBase::write(VirtAddr::new(core::ptr::from_ref(area).addr() as u64));
    // SAFETY: as promised; interrupts are blocked since the start.
    unsafe { descriptors::load(area) };
    unit::set_up();
    apic::enable();
    area.online.store(true, Ordering::Release);
}

/// Starts a CPU and waits for it. One that does not come stays offline.
///
/// # Safety
/// One at a time.
unsafe fn start(area: &'static Area) -> Result<(), AllocError> {
    let layout = Layout::from_size_align(STACK, 4096).map_err(|_| AllocError::InvalidArgument)?;
    let stack = Kernel.boot_alloc(layout)?.addr().get() + STACK;
    let words = [
        unit::root().0 as usize,
        Cr4::read_raw() as usize,
        stack,
        core::ptr::from_ref(area).addr(),
        flagstone_cpu_main as *const () as usize,
    ];
    let code = &raw const flagstone_cpu_start;
    let bytes = (&raw const flagstone_cpu_start_end).addr() - code.addr();
    let words_at = (&raw const flagstone_cpu_start_words).addr() - code.addr();
    let page = direct::pointer(u64::from(CPU_START_PAGE) << 12);
    // SAFETY: M2: the page is nobody's; the code is shorter than a page and ends with five aligned words.
    unsafe {
        page.as_ptr().copy_from_nonoverlapping(code, bytes);
        page.add(words_at).cast::<[usize; 5]>().write(words);
    }
    apic::send_init(area.apic_id);
    clock::pause(10 * MILLISECOND);
    for _ in 0..2 {
        apic::send_start_up(area.apic_id, CPU_START_PAGE);
        let mut waited = 0;
        while !area.online.load(Ordering::Acquire) && waited < PATIENCE / 2 {
            clock::pause(MILLISECOND / 10);
            waited += MILLISECOND / 10;
        }
        if area.online.load(Ordering::Acquire) {
            return Ok(());
        }
    }
    Kernel.log(
        Level::Warning,
        format_args!("CPU {} (APIC {}) did not start", area.id, area.apic_id),
    );
    Ok(())
}

/// Where a further CPU enters Rust.
///
/// # Safety
/// Called by the start code only, with the CPU's area.
unsafe extern "C" fn flagstone_cpu_main(area: &'static Area) -> ! {
    // SAFETY: this CPU's area; and the block is its first.
    unsafe {
        enter(area);
        interrupts::unblock();
    }
    crew::work();
}
