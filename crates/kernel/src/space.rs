//! The kernel's page table, and address spaces that share it (U2).
//!
//! The kernel's table has the upper half of all addresses; its root names every table of the second-highest level that there will ever be, so
//! that an address space gets them by copying half of a root. Every CPU is in the set of the kernel's table for ever: it
//! holds translations of it whatever address space it is in.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::direct::{self, DIRECT};
use crate::entry_area;
use crate::features::{self, Features};
use crate::interrupts::IrqGuard;
use crate::kernel::Kernel;
use crate::layout::{IMAGE, USER_PAGE};
use crate::per_cpu::Area;
use crate::{access, crew, memory, unit};
use flagstone_frames::Frames;
use flagstone_host::{Asid, Cpus};
use flagstone_pgtable::format::{Access, Format, Leaf, Marks, Memory, X86_64, X86_64La57};
use flagstone_pgtable::{
    Error, Exclusive, Ops, PageTable, Params, Pmd, Pte, Pud, Reach, TableLevel,
};
use flagstone_types::{Gfp, PhysAddr, VirtAddr};

/// A page table of this machine in format `F`.
pub(crate) type Table<F> = PageTable<'static, Kernel, F>;
type Maker<'t, F> = Ops<'t, 'static, Kernel, F, Exclusive>;

const PAGE: u64 = 4096;
const PMD: u64 = 2 << 20;
const PUD: u64 = 1 << 30;
/// The registers of the local interrupt controllers are in this page of 2 MiB.
const CONTROLLERS: u64 = 0xfee0_0000;

unsafe extern "C" {
    static flagstone_code: u8;
    static flagstone_code_end: u8;
    static flagstone_constants_end: u8;
    static flagstone_image_end: u8;
}

/// Formats that the unit of this machine can run.
pub(crate) trait Running: Format {
    /// Where the kernel's table is kept.
    fn kept() -> &'static AtomicPtr<Table<Self>>;
}

impl Running for X86_64 {
    fn kept() -> &'static AtomicPtr<Table<Self>> {
        static KEPT: AtomicPtr<Table<X86_64>> = AtomicPtr::new(core::ptr::null_mut());
        &KEPT
    }
}

impl Running for X86_64La57 {
    fn kept() -> &'static AtomicPtr<Table<Self>> {
        static KEPT: AtomicPtr<Table<X86_64La57>> = AtomicPtr::new(core::ptr::null_mut());
        &KEPT
    }
}

/// Work that is the same for both formats.
pub(crate) trait ForFormat {
    /// Does it for the format that runs.
    fn run<F: Running>(self);
}

/// Does `work` for the format that runs.
pub(crate) fn for_running(work: impl ForFormat) {
    if unit::levels() == 5 {
        work.run::<X86_64La57>();
    } else {
        work.run::<X86_64>();
    }
}

/// The kernel's table, once there is one.
pub(crate) fn kernel_table<F: Running>() -> Option<&'static Table<F>> {
    // SAFETY: not null, so `make` stored a table that lives for ever.
    unsafe { F::kept().load(Ordering::Acquire).as_ref() }
}

/// Makes the kernel's table and has every CPU use it, and its entry area in it. Called once, by the first CPU, when every other has
/// started and frames are up.
///
/// # Errors
/// There is no memory for tables.
pub(crate) fn make(frames: &'static Frames<Kernel>) -> Result<(), Error> {
    struct Make(&'static Frames<Kernel>, Result<(), Error>);
    impl ForFormat for &mut Make {
        fn run<F: Running>(self) {
            self.1 = build::<F>(self.0);
        }
    }
    let mut work = Make(frames, Ok(()));
    for_running(&mut work);
    work.1?;
    crew::run(|_| {
        for_running(Enter);
        // SAFETY: the kernel's table is active here, and has the areas.
        unsafe { entry_area::enter(Area::current()) };
    });
    Ok(())
}

struct Enter;

impl ForFormat for Enter {
    fn run<F: Running>(self) {
        let table = kernel_table::<F>().expect("made before");
        let _guard = IrqGuard::new();
        // SAFETY: U2: it maps everything that the start code's table maps in the upper half, which is all that runs
        // from here on; it is never dropped.
        unsafe { table.activate(Area::current().id) };
    }
}

fn build<F: Running>(frames: &'static Frames<Kernel>) -> Result<(), Error> {
    let params = Params {
        asid: None,
        reach: Reach::Upper,
        gfp: Gfp::KERNEL,
    };
    let mut table = Table::<F>::new(frames, params)?;
    let mut maker = table.exclusive();
    map_memory(&mut maker)?;
    map_image(&mut maker)?;
    let user_page = PhysAddr((access::user_page().addr() - IMAGE) as u64);
    let for_user = Access::READ | Access::EXEC | Access::USER;
    map::<F, Pte>(&mut maker, USER_PAGE, leaf(user_page, for_user), 1)?;
    entry_area::map(|at, frame, access| map::<F, Pte>(&mut maker, at, leaf(frame, access), 1))?;
    table.lend_upper_half()?;
    let table = Box::leak(Box::new(table));
    F::kept().store(table, Ordering::Release);
    Ok(())
}

/// A leaf of the kernel's: in every address space, accessed and dirty already, of nobody's page.
fn leaf(at: PhysAddr, access: Access) -> Leaf {
    let mut marks = Marks::GLOBAL | Marks::YOUNG | Marks::SPECIAL;
    marks.set(Marks::DIRTY, access.contains(Access::WRITE));
    Leaf::kernel(at, access).mark(marks)
}

fn map<F: Format, L: TableLevel>(
    maker: &mut Maker<'_, F>,
    at: usize,
    leaf: Leaf,
    count: usize,
) -> Result<(), Error> {
    maker
        .map::<L>(VirtAddr(at), &leaf, count)
        .map_err(|failed| failed.error)
}

/// Where the image's code, constants and variables are in physical memory.
struct Image {
    code: u64,
    constants: u64,
    variables: u64,
    end: u64,
}

fn image() -> Image {
    let physical = |symbol: *const u8| (symbol.addr() - IMAGE) as u64;
    Image {
        code: physical(&raw const flagstone_code),
        constants: physical(&raw const flagstone_code_end).next_multiple_of(PAGE),
        variables: physical(&raw const flagstone_constants_end).next_multiple_of(PAGE),
        end: (&raw const flagstone_image_end).addr() as u64,
    }
}

/// The image where it runs: code may be executed, variables may be written, nothing may be both.
fn map_image<F: Format>(maker: &mut Maker<'_, F>) -> Result<(), Error> {
    let image = image();
    let parts = [
        (image.code, image.constants, Access::READ | Access::EXEC),
        (image.constants, image.variables, Access::READ),
        (image.variables, image.end, Access::READ | Access::WRITE),
    ];
    for (start, end, access) in parts {
        let pages = ((end - start) / PAGE) as usize;
        let leaf = leaf(PhysAddr(start), access);
        map::<F, Pte>(maker, IMAGE + start as usize, leaf, pages)?;
    }
    Ok(())
}

/// Physical memory where it was before, in the largest pages there are; what is code or constants of the image may not be written here
/// either.
fn map_memory<F: Format>(maker: &mut Maker<'_, F>) -> Result<(), Error> {
    let data = Access::READ | Access::WRITE;
    let image = image();
    let fixed = image.code..image.variables;
    let mut at = 0;
    let end = memory::end().max(4 * PUD);
    while at < end {
        let place = DIRECT + at as usize;
        let leaf_of = |at: u64| leaf(PhysAddr(at), data);
        let holds = |what: u64, size: u64| what >= at && what - at < size;
        let overlaps = |size: u64| at < fixed.end && fixed.start < at + size;
        let large = features::features().contains(Features::GIB_PAGES);
        if large && at.is_multiple_of(PUD) && !overlaps(PUD) && !holds(CONTROLLERS, PUD) {
            map::<F, Pud>(maker, place, leaf_of(at), 1)?;
            at += PUD;
        } else if holds(CONTROLLERS, PMD) {
            let registers = leaf_of(at).cached(Memory::Device);
            map::<F, Pmd>(maker, place, registers, 1)?;
            at += PMD;
        } else if !overlaps(PMD) {
            map::<F, Pmd>(maker, place, leaf_of(at), 1)?;
            at += PMD;
        } else {
            let page = |n: usize| {
                let at = at + n as u64 * PAGE;
                let access = if fixed.contains(&at) {
                    Access::READ
                } else {
                    data
                };
                leaf(PhysAddr(at), access)
            };
            maker
                .map_each::<Pte>(VirtAddr(place), 512, page)
                .map_err(|failed| failed.error)?;
            at += PMD;
        }
    }
    debug_assert!(end <= direct::REACH);
    Ok(())
}

/// An address space with the kernel's half.
///
/// # Errors
/// There is no memory for its root, or the kernel has no table yet.
pub(crate) fn new_space<F: Running>() -> Result<Table<F>, Error> {
    let kernel = kernel_table::<F>().ok_or(Error::NoSuchEntry(F::TOP))?;
    let params = Params {
        asid: Some(Asid(0)),
        reach: Reach::Lower,
        gfp: Gfp::KERNEL,
    };
    let mut table = Table::<F>::new(kernel.frames(), params)?;
    // SAFETY: U2: the kernel's table is never dropped, and every CPU is in its set.
    unsafe { table.borrow_upper_half(kernel)? };
    Ok(table)
}

/// Makes this CPU translate by an address space.
pub(crate) fn enter<F: Running>(space: &PageTable<'_, Kernel, F>) {
    let _guard = IrqGuard::new();
    // SAFETY: U2: it has the kernel's half; who drops it while a CPU is in it is told and leaks it.
    unsafe { space.activate(Kernel.current_cpu()) };
}

/// Makes this CPU translate by the kernel's table alone.
pub(crate) fn leave<F: Running>(space: &PageTable<'_, Kernel, F>) {
    let _guard = IrqGuard::new();
    let cpu = Kernel.current_cpu();
    let kernel =
        kernel_table::<F>().expect("there is an address space, so there is the kernel's table");
    // SAFETY: U2; the kernel's table is never dropped. Loading it has dropped what the CPU knew of the space (U3).
    unsafe {
        kernel.activate(cpu);
        space.leave(cpu);
    }
}
