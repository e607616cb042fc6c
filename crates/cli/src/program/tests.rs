use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn write(folder: &Path, name: &str, mode: u32, contents: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, contents).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

/// An ELF header without segments, as a statically linked program may have one.
fn header(class: u8, machine: u16, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..4].copy_from_slice(&elf::ELFMAG);
    bytes[4] = class;
    bytes[5] = elf::ELFDATA2LSB;
    bytes[6] = elf::EV_CURRENT;
    bytes[16..18].copy_from_slice(&kind.to_le_bytes());
    bytes[18..20].copy_from_slice(&machine.to_le_bytes());
    bytes[20..24].copy_from_slice(&1_u32.to_le_bytes());
    bytes[52..54].copy_from_slice(&64_u16.to_le_bytes());
    bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
    bytes
}

#[test]
fn the_test_program_itself_can_be_preloaded() {
    check(&std::env::current_exe().unwrap()).unwrap();
}

#[test]
fn kinds_of_elf_files_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let refusal = |bytes: &[u8]| check(&write(folder.path(), "file", 0o755, bytes)).unwrap_err();
    assert!(matches!(
        refusal(&header(2, elf::EM_X86_64, elf::ET_EXEC)),
        Refusal::Static
    ));
    assert!(matches!(
        refusal(&header(2, elf::EM_X86_64, elf::ET_REL)),
        Refusal::NotExecutable(elf::ET_REL)
    ));
    assert!(matches!(
        refusal(&header(2, elf::EM_AARCH64, elf::ET_DYN)),
        Refusal::Machine(elf::EM_AARCH64)
    ));
    assert!(matches!(
        refusal(&header(1, elf::EM_386, elf::ET_EXEC)),
        Refusal::Class32
    ));
    assert!(matches!(
        refusal(&header(2, elf::EM_X86_64, elf::ET_EXEC)[..30]),
        Refusal::Damaged(_)
    ));
    assert!(matches!(refusal(b"\x7fELF"), Refusal::UnknownFormat));
    assert!(matches!(refusal(b"echo hello\n"), Refusal::UnknownFormat));
    assert!(matches!(refusal(b""), Refusal::Empty));
}

#[test]
fn a_foreign_loader_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let loader = b"/lib/ld-musl-x86_64.so.1\0";
    let mut bytes = header(2, elf::EM_X86_64, elf::ET_DYN);
    bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
    bytes[56..58].copy_from_slice(&1_u16.to_le_bytes());
    let mut segment = vec![0; 56];
    segment[..4].copy_from_slice(&elf::PT_INTERP.to_le_bytes());
    segment[8..16].copy_from_slice(&120_u64.to_le_bytes());
    segment[32..40].copy_from_slice(&(loader.len() as u64).to_le_bytes());
    bytes.extend(segment);
    bytes.extend(loader);
    let refusal = check(&write(folder.path(), "file", 0o755, &bytes)).unwrap_err();
    assert!(
        refusal.to_string().contains("/lib/ld-musl-x86_64.so.1"),
        "{refusal}"
    );
}

#[test]
fn a_script_is_judged_by_its_interpreter() {
    let folder = tempfile::tempdir().unwrap();
    let fixed = write(
        folder.path(),
        "static",
        0o755,
        &header(2, elf::EM_X86_64, elf::ET_EXEC),
    );
    let script = write(
        folder.path(),
        "script",
        0o755,
        format!("#! {} -x\n", fixed.display()).as_bytes(),
    );
    let refusal = check(&script).unwrap_err();
    assert!(
        matches!(&refusal, Refusal::Interpreter { path, .. } if *path == fixed),
        "{refusal}"
    );
    assert!(
        refusal.to_string().contains("statically linked"),
        "{refusal}"
    );

    let itself = folder.path().join("itself");
    write(
        folder.path(),
        "itself",
        0o755,
        format!("#!{}", itself.display()).as_bytes(),
    );
    assert!(matches!(
        check(&itself).unwrap_err(),
        Refusal::TooManyInterpreters
    ));

    let none = write(folder.path(), "none", 0o755, b"#!  \n");
    assert!(matches!(check(&none).unwrap_err(), Refusal::NoInterpreter));
    let gone = write(folder.path(), "gone", 0o755, b"#!/no/such/interpreter\n");
    assert_eq!(check(&gone).unwrap_err().exit_status(), 126);
    let good = write(folder.path(), "good", 0o755, b"#!/bin/sh\n");
    check(&good).unwrap();
}

#[test]
fn the_path_is_searched_as_execvp_does() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let path = std::env::join_paths(["a", "b", "c"].map(|name| folder.path().join(name))).unwrap();
    let find = |name: &str| find(OsStr::new(name), Some(&path));
    fs::create_dir(folder.path().join("a/tool")).unwrap();
    write(&folder.path().join("b"), "tool", 0o644, b"#!/bin/sh\n");
    assert_eq!(find("tool").unwrap_err().exit_status(), 126);
    let good = write(&folder.path().join("c"), "tool", 0o755, b"#!/bin/sh\n");
    assert_eq!(find("tool").unwrap(), good);
    assert_eq!(find("absent").unwrap_err().exit_status(), 127);
    assert_eq!(find("").unwrap_err().exit_status(), 127);
    assert_eq!(find("./absent").unwrap(), Path::new("./absent"));
}

#[test]
fn only_a_change_of_privileges_is_refused() {
    let file = |mode, owner, group| FileRights {
        mode,
        owner,
        group,
        capabilities: false,
        nosuid: false,
    };
    let caller = Caller {
        user: 1000,
        group: 1000,
        no_new_privileges: false,
    };
    let root = Caller {
        user: 0,
        group: 0,
        no_new_privileges: false,
    };
    assert!(check_privileges(&file(0o755, 0, 0), &caller).is_ok());
    assert!(matches!(
        check_privileges(&file(0o4755, 0, 0), &caller),
        Err(Refusal::SetUser(0))
    ));
    assert!(matches!(
        check_privileges(&file(0o2755, 0, 8), &caller),
        Err(Refusal::SetGroup(8))
    ));
    assert!(
        check_privileges(&file(0o2745, 0, 8), &caller).is_ok(),
        "not heeded without the group's execute bit"
    );
    assert!(check_privileges(&file(0o4755, 1000, 1000), &caller).is_ok());
    assert!(check_privileges(&file(0o4755, 0, 0), &root).is_ok());

    let capable = FileRights {
        capabilities: true,
        ..file(0o755, 0, 0)
    };
    assert!(matches!(
        check_privileges(&capable, &caller),
        Err(Refusal::Capabilities)
    ));
    assert!(check_privileges(&capable, &root).is_ok());
    let ignored = FileRights {
        nosuid: true,
        ..file(0o4755, 0, 0)
    };
    assert!(check_privileges(&ignored, &caller).is_ok());
    let bound = Caller {
        no_new_privileges: true,
        ..caller
    };
    assert!(check_privileges(&file(0o4755, 0, 0), &bound).is_ok());
}
