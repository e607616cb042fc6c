//! `flagstone ptdump` on images that the simulator saved.

use flagstone_frames::Frames;
use flagstone_host::Asid;
use flagstone_pgtable::format::{Access, Format, Leaf, X86_64};
use flagstone_pgtable::shadow::Mapping;
use flagstone_pgtable::{PageTable, Params, Pmd, Pte, Reach};
use flagstone_sim::{Arch, Machine, Space};
use flagstone_types::{Gfp, PhysAddr, VirtAddr};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An image of a machine with one page table: code, data, a huge page, and a page that may be both written and executed.
fn image(name: &str) -> PathBuf {
    let machine = Machine::<12>::builder(Arch::named(X86_64::NAME).unwrap()).build();
    let frames = Frames::new(&machine).unwrap();
    let params = Params {
        asid: Some(Asid(1)),
        reach: Reach::Whole,
        gfp: Gfp::NOWAIT,
    };
    let table = PageTable::<_, X86_64>::new(&frames, params).unwrap();
    let ops = table.shared();
    let leaf = |at, access| Leaf::new(PhysAddr(at), access, Mapping::Ordinary);
    let (r, w, x, u) = (Access::READ, Access::WRITE, Access::EXEC, Access::USER);
    let map = |at, place, access, count| {
        ops.map::<Pte>(VirtAddr(at), &leaf(place, access), count)
            .unwrap();
    };
    map(0x40_0000, 0x10_0000, r | x | u, 16);
    map(0x60_0000, 0x20_0000, r | w | u, 3);
    map(0x60_3000, 0x50_0000, r | w | u, 1);
    map(0x7000_0000, 0x30_0000, r | w | x | u, 1);
    ops.map::<Pmd>(VirtAddr(0x8000_0000), &leaf(0x4000_0000, r | w | u), 2)
        .unwrap();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let space = Space {
        name: "init".into(),
        format: X86_64::NAME,
        root: table.root(),
    };
    let mut file = File::create(&path).unwrap();
    machine.write_image(&[space], &mut file).unwrap();
    path
}

fn ptdump(image: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_flagstone"))
        .arg("ptdump")
        .arg(image)
        .args(more)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn ranges_have_flags_and_levels_and_what_may_be_written_and_executed_is_counted() {
    let image = image("ranges.core");
    let (code, out, err) = ptdump(&image, &["--physical"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let lines: Vec<_> = out.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "0x0000000000400000-0x0000000000410000       64K USR ro        x  pte at 0x100000",
            "0x0000000000600000-0x0000000000604000       16K USR RW        NX pte scattered",
            "0x0000000070000000-0x0000000070001000        4K USR RW        x  pte at 0x300000",
            "0x0000000080000000-0x0000000080400000        4M USR RW        NX pmd at 0x40000000",
            "W+X mappings: 4 KiB found, the first at 0x70000000",
        ]
    );
    assert!(out.starts_with("---[ init: x86_64, root 0x"));
    let (_, out, _) = ptdump(&image, &["--wx"]);
    assert_eq!(out.lines().count(), 3, "{out}");
}

#[test]
fn a_fault_is_shown_with_the_entry_at_every_level() {
    let image = image("fault.core");
    let (code, out, _) = ptdump(&image, &["--fault", "0x401000", "--code", "7"]);
    assert_eq!(code, Some(0));
    assert!(
        out.contains("bad user write access at address 0x0000000000401000"),
        "{out}"
    );
    assert!(
        out.contains("error_code(0x0007) - permissions violation"),
        "{out}"
    );
    for level in ["pgd ", "pud ", "pmd ", "pte "] {
        assert!(
            out.lines().any(|line| line.starts_with(level)),
            "{level}: {out}"
        );
    }
}

#[test]
fn json_has_what_the_text_has() {
    let image = image("json.core");
    let (_, out, _) = ptdump(&image, &["--json"]);
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    let ranges = value[0]["ranges"].as_array().unwrap();
    assert_eq!(ranges.len(), 4);
    assert_eq!(ranges[3]["bytes"], 4 << 20);
    assert_eq!(ranges[2]["writable_and_executable"], true);
}

#[test]
fn what_is_wrong_is_said_with_the_value() {
    let (code, _, err) = ptdump(Path::new("/nowhere/at.all"), &[]);
    assert_eq!(code, Some(1));
    assert!(err.contains("/nowhere/at.all"), "{err}");
    let (code, _, err) = ptdump(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("Cargo.toml")
            .as_path(),
        &[],
    );
    assert_eq!(code, Some(1));
    assert!(err.contains("ELF core is expected"), "{err}");
    let image = image("names.core");
    let (code, _, err) = ptdump(&image, &["--space", "other"]);
    assert!(
        code == Some(1) && err.contains("\"other\"") && err.contains("init"),
        "{err}"
    );
    let (code, _, err) = ptdump(&image, &["--arch", "vax"]);
    assert!(
        code == Some(2) && err.contains("vax") && err.contains("riscv64"),
        "{err}"
    );
}
