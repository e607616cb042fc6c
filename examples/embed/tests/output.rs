//! The program runs, and says what `docs/embedding.md` says that it says.

use std::process::Command;

#[test]
fn the_program_allocates_and_shows_where_its_memory_is() {
    let output = Command::new(env!("CARGO_BIN_EXE_flagstone-example-embed"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    for line in [
        "100 sensors: 100 in use",
        "kmalloc of 1000 bytes: 1024 usable",
        "a block of 8 pages",
        "wrong free (kmalloc): pointer is 8 bytes inside an allocation",
        "slabinfo - version: 2.1",
        "sensor ",
        "kmalloc-1024 ",
        "Node 0, zone   Normal",
        "then: Err(OutOfMemory)",
    ] {
        assert!(text.contains(line), "{line}\nis not in\n{text}");
    }
    assert!(!text.contains("Busy"), "all sensors were freed:\n{text}");
}
