//! `flagstone run` as a user meets it: exit statuses, signals, environment, refusals.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn flagstone(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flagstone"));
    command.args(arguments).env_remove("LD_PRELOAD");
    command
}

fn run(arguments: &[&str]) -> Output {
    flagstone(&["run"]).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr)
        .trim_end()
        .to_owned()
}

fn compile(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let source = folder.join("main.c");
    fs::write(&source, "int main(void) { return 5; }\n").unwrap();
    let program = folder.join(name);
    let status = Command::new("gcc")
        .args(options)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .status()
        .unwrap();
    assert!(status.success());
    program
}

#[test]
fn the_exit_status_is_the_programs() {
    for status in [0, 1, 3, 42, 255] {
        assert_eq!(
            run(&["--", "sh", "-c", &format!("exit {status}")])
                .status
                .code(),
            Some(status)
        );
    }
}

#[test]
fn a_signal_that_ends_the_program_is_seen_by_who_waits() {
    for signal in [9, 11, 15] {
        assert_eq!(
            run(&["--", "sh", "-c", &format!("kill -{signal} $$")])
                .status
                .signal(),
            Some(signal)
        );
    }
    // A shell reports it as 128 + n.
    let command = format!(
        "{} run -- sh -c 'kill -15 $$'; exit $?",
        env!("CARGO_BIN_EXE_flagstone")
    );
    assert_eq!(
        Command::new("sh")
            .args(["-c", &command])
            .status()
            .unwrap()
            .code(),
        Some(128 + 15)
    );
}

#[test]
fn the_program_is_this_process() {
    let child = flagstone(&["run", "--", "sh", "-c", "echo $$"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    assert_eq!(stdout(&child.wait_with_output().unwrap()), pid);
}

#[test]
fn arguments_and_streams_pass_through() {
    let output = run(&["printf", "%s|", "--stats", "-h", "", "a b"]);
    assert_eq!(stdout(&output), "--stats|-h||a b|");
    let output = run(&["--", "sh", "-c", "echo to stderr >&2"]);
    assert_eq!(stderr(&output), "to stderr");
}

#[test]
fn the_library_is_loaded_and_comes_first() {
    let output = run(&["--", "cat", "/proc/self/maps"]);
    assert!(
        stdout(&output).contains("/libflagstone-"),
        "{}",
        stdout(&output)
    );

    let output = flagstone(&["run", "sh", "-c", "echo $LD_PRELOAD"])
        .env("LD_PRELOAD", "libc.so.6")
        .output()
        .unwrap();
    let list = stdout(&output);
    let (first, rest) = list.split_once(':').unwrap();
    assert!(
        first.contains("/libflagstone-") && rest == "libc.so.6",
        "{list}"
    );
}

#[test]
fn variables_and_settings_reach_the_program() {
    let output = run(&[
        "--env",
        "A=b=c",
        "--env=B=",
        "--",
        "sh",
        "-c",
        "echo \"$A,$B,${FLAGSTONE_STATS-unset}\"",
    ]);
    assert_eq!(stdout(&output), "b=c,,unset");
    for (option, setting) in [
        ("--stats", "text"),
        ("--stats=json", "json"),
        ("--stats=/x/%p.json", "/x/%p.json"),
    ] {
        assert_eq!(
            stdout(&run(&[option, "--", "sh", "-c", "echo $FLAGSTONE_STATS"])),
            setting
        );
    }
    let output = run(&["--env", "nothing", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("nothing"), "{}", stderr(&output));
}

#[test]
fn the_path_of_the_program_is_searched_in_its_own_environment() {
    let folder = tempfile::tempdir().unwrap();
    let tool = folder.path().join("some-tool");
    fs::write(&tool, "#!/bin/sh\necho found\n").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("PATH={}:/bin:/usr/bin", folder.path().display());
    assert_eq!(stdout(&run(&["--env", &path, "--", "some-tool"])), "found");
    assert_eq!(run(&["--", "some-tool"]).status.code(), Some(127));
}

#[test]
fn a_missing_program_gives_127() {
    for missing in ["no-such-program", "/no/such/program", "./no-such-program"] {
        let output = run(&["--", missing]);
        assert_eq!(output.status.code(), Some(127));
        assert!(stderr(&output).contains(missing), "{}", stderr(&output));
    }
}

#[test]
fn what_can_not_be_executed_gives_126() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    fs::write(&text, "echo hello\n").unwrap();
    fs::set_permissions(&text, fs::Permissions::from_mode(0o644)).unwrap();
    let cases = [
        (text.clone(), "ermission"),
        (folder.path().to_owned(), "folder"),
    ];
    for (path, reason) in cases {
        let output = run(&["--", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(126));
        assert!(stderr(&output).contains(reason), "{}", stderr(&output));
    }
    fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).unwrap();
    let output = run(&["--", text.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(126));
    assert!(
        stderr(&output).contains("neither an ELF program nor a script"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_static_program_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for options in [&["-static"][..], &["-static-pie"]] {
        let program = compile(folder.path(), "program", options);
        let output = run(&["--", program.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(126), "{options:?}");
        assert!(
            stderr(&output).contains("statically linked"),
            "{}",
            stderr(&output)
        );
    }
    let program = compile(folder.path(), "program", &[]);
    assert_eq!(
        run(&["--", program.to_str().unwrap()]).status.code(),
        Some(5)
    );
}

#[test]
fn a_program_that_gains_privileges_is_refused() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = compile(folder.path(), "program", &[]);
    let root = fs::metadata(folder.path()).unwrap().uid() == 0;
    let (path, what) = if root {
        chown(&program, Some(65534), Some(65534)).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
        (program, "set-user-ID to user 65534")
    } else {
        // Only root can give a file away; such programs are in every system.
        (PathBuf::from("/usr/bin/passwd"), "set-user-ID to user 0")
    };
    let output = run(&["--", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(126), "{}", stderr(&output));
    assert!(stderr(&output).contains(what), "{}", stderr(&output));
    if root {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o2755)).unwrap();
        assert!(
            stderr(&run(&["--", path.to_str().unwrap()])).contains("set-group-ID to group 65534")
        );
        chown(&path, Some(0), Some(0)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
        assert_eq!(
            run(&["--", path.to_str().unwrap()]).status.code(),
            Some(5),
            "root gains nothing from root's files"
        );
    }
}

#[test]
fn a_damaged_copy_of_the_library_is_replaced() {
    let cache = tempfile::tempdir().unwrap();
    let path = |cache: &Path| {
        let output = flagstone(&["library"])
            .env("XDG_CACHE_HOME", cache)
            .output()
            .unwrap();
        PathBuf::from(stdout(&output))
    };
    let library = path(cache.path());
    let good = fs::read(&library).unwrap();
    assert_eq!(fs::metadata(&library).unwrap().mode() & 0o7777, 0o755);
    fs::write(&library, b"damaged").unwrap();
    assert_eq!(path(cache.path()), library);
    assert_eq!(fs::read(&library).unwrap(), good);
}

#[test]
fn a_cache_that_others_may_write_to_is_not_used() {
    let cache = tempfile::tempdir().unwrap();
    fs::create_dir(cache.path().join("flagstone")).unwrap();
    fs::set_permissions(
        cache.path().join("flagstone"),
        fs::Permissions::from_mode(0o777),
    )
    .unwrap();
    let output = flagstone(&["library"])
        .env("XDG_CACHE_HOME", cache.path())
        .output()
        .unwrap();
    assert!(
        stdout(&output).starts_with("/tmp/flagstone-"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn many_first_starts_at_once_all_run() {
    let cache = tempfile::tempdir().unwrap();
    let children: Vec<_> = (0..16)
        .map(|_| {
            flagstone(&["run", "true"])
                .env("XDG_CACHE_HOME", cache.path())
                .spawn()
                .unwrap()
        })
        .collect();
    assert!(
        children
            .into_iter()
            .all(|mut child| child.wait().unwrap().success())
    );
    assert_eq!(
        fs::read_dir(cache.path().join("flagstone"))
            .unwrap()
            .count(),
        1
    );
}
