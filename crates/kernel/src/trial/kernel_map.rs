//! Changing what may be done with mappings of the kernel, which is in use meanwhile: the memory of a module is filled, made read-only and executable,
//! run, and made data again; the direct map follows in what may be written, never in what may be executed, and is put together again.

use super::spaces::frame;
use crate::access::{RETURN, Who, try_exec, try_read, try_write};
use crate::direct::DIRECT;
use crate::layout::PRIVATE;
use crate::memory;
use crate::space::{self, ForFormat, Running};
use flagstone_frames::PageBlock;
use flagstone_pgtable::format::{Access, Leaf, Level, Marks};
use flagstone_pgtable::kernel_map::{Alias, KernelMap};
use flagstone_pgtable::{NotOwned, Pte, VirtRange};
use flagstone_types::{Bytes, Order, Pfn, PhysAddr, VirtAddr};

const PAGE: usize = 4096;
/// The block that the module lies in: one huge page of the direct map.
const ORDER: u32 = 9;
const BLOCK: usize = PAGE << ORDER;
const PAGES: usize = 4;

/// What may be done at an address whose first byte is a return instruction: write, execute.
fn allowed(at: usize) -> (bool, bool) {
    assert!(try_read(Who::Kernel, VirtAddr(at)).is_ok());
    // SAFETY: memory of this trial, with a return instruction.
    unsafe {
        (
            try_write(Who::Kernel, VirtAddr(at), u64::from(RETURN)).is_ok(),
            try_exec(Who::Kernel, VirtAddr(at)).is_ok(),
        )
    }
}

struct Module;

impl ForFormat for Module {
    fn run<F: Running>(self) {
        let table = space::kernel_table::<F>().expect("made at start");
        let at = frame(ORDER, 0);
        let block = DIRECT + at.0 as usize;
        // The second page of the block and those after it, so that the huge page has to be split.
        let alias = block + PAGE;
        for n in 0..PAGES {
            // SAFETY: the trial's own block.
            unsafe {
                core::ptr::with_exposed_provenance_mut::<u8>(alias + n * PAGE).write(RETURN);
            }
        }
        let data = Leaf::kernel(PhysAddr(at.0 + PAGE as u64), Access::READ | Access::WRITE)
            .mark(Marks::GLOBAL | Marks::SPECIAL | Marks::YOUNG | Marks::DIRTY);
        let module = VirtRange::new(PRIVATE + PAGE, PAGES * PAGE);
        let ops = table.shared();
        ops.map::<Pte>(module.start, &data, PAGES)
            .expect("room for tables");
        let direct = [Alias {
            range: VirtRange::new(DIRECT, memory::end() as usize),
            to: PhysAddr(0),
        }];
        // SAFETY: the ranges that are changed are of this trial's memory.
        let kernel = unsafe { KernelMap::new(table, &direct) };
        let whole = VirtRange::new(block, BLOCK);
        let pages = |level: Level| {
            let bytes = kernel.bytes_by_level(whole).expect("mapped");
            bytes[level.index()]
        };
        assert_eq!(allowed(module.start.0), (true, false));
        assert_eq!(
            pages(Level::PTE),
            Bytes(0),
            "the direct map begins with large pages"
        );

        kernel.set_memory_rox(module).expect("mapped");
        for n in 0..PAGES {
            assert_eq!(allowed(module.start.0 + n * PAGE), (false, true));
            assert_eq!(
                allowed(alias + n * PAGE),
                (false, false),
                "the alias follows in writing only"
            );
        }
        assert_eq!(pages(Level::PTE), Bytes(BLOCK), "only this page was split");
        // SAFETY: the trial's block: its neighbours are still data.
        assert!(unsafe { try_write(Who::Kernel, VirtAddr(block), 1) }.is_ok());

        kernel.set_memory_nx(module).expect("mapped");
        assert_eq!(allowed(module.start.0), (false, false));
        kernel.set_memory_rw(module).expect("mapped");
        assert_eq!(allowed(module.start.0), (true, false));
        assert_eq!(allowed(alias), (true, false));
        assert_eq!(
            pages(Level::PTE),
            Bytes(0),
            "equal parts are one page again"
        );

        let mut gather = ops.gather(NotOwned);
        ops.unmap(module, &mut gather).expect("mapped");
        ops.free_tables(module, &mut gather).expect("a good range");
        gather.finish();
        assert!(try_read(Who::Kernel, module.start).is_err());
        let pfn = Pfn((at.0 >> 12) as usize);
        // SAFETY: from `frame`, once.
        let block = unsafe { PageBlock::from_raw(pfn, Order::new(ORDER).expect("a small order")) };
        super::caches().frames().free_pages(block);
    }
}

pub(super) fn run() {
    space::for_running(Module);
}
