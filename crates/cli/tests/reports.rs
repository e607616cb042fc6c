//! Reports of bugs through `flagstone run`, as a user reads them.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn flagstone() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flagstone"));
    command.env_remove("LD_PRELOAD");
    command
}

/// Compiles `source` as `program.c` and returns the program.
fn compile(folder: &Path, source: &str, options: &[&str]) -> PathBuf {
    let file = folder.join("program.c");
    fs::write(&file, source).unwrap();
    let program = folder.join("program");
    let status = Command::new("gcc")
        .args(["-w", "-fno-builtin", "-fdebug-prefix-map=.=", "-g"])
        .args(options)
        .args(["program.c", "-o", "program"])
        .current_dir(folder)
        .status()
        .unwrap();
    assert!(status.success());
    program
}

const DOUBLE_FREE: &str = "#include <stdlib.h>
static void release(void *p)
{
    free(p);
}
__attribute__((noinline)) int twice(void *p)
{
    release(p);
    release(p);
    return 0;
}
int main(void)
{
    return twice(malloc(100)) + 1;
}
";

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Numbers that differ between runs become `#`, the frames of the C library and paths go.
fn golden(text: &str, program: &Path) -> String {
    let folder = program.parent().unwrap().to_str().unwrap();
    let lines = text.lines().filter(|line| !line.contains("libc.so"));
    let mut result = String::new();
    for line in lines {
        let mut rest = line.replace(&format!("{folder}/"), "");
        while let Some(at) = rest.find("0x") {
            let end = rest[at + 2..]
                .find(|char: char| !char.is_ascii_hexdigit())
                .map_or(rest.len(), |length| at + 2 + length);
            result.push_str(&rest[..at]);
            result.push('#');
            rest = rest[end..].to_owned();
        }
        result.push_str(&rest);
        result.push('\n');
    }
    result
}

#[test]
fn a_double_free_is_told_by_function_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), DOUBLE_FREE, &["-O1"]);
    let output = flagstone()
        .args(["run", "--reports", "--"])
        .arg(&program)
        .output()
        .unwrap();
    assert_eq!(output.status.signal(), Some(6));
    assert_eq!(
        golden(&stderr(&output), &program),
        "flagstone: error: double free of #: object is already free (cache malloc-112)
 release program.c:4 [inlined]
 twice program.c:9 (program+#)
 main program.c:14 (program+#)
 _start (program+#)
",
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_exit_status_says_that_there_were_reports() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), DOUBLE_FREE, &["-O0"]);
    let run = |program: &Path| {
        let mut command = flagstone();
        command
            .args(["run", "--error-exit", "77", "--"])
            .arg(program);
        command.output().unwrap()
    };
    assert_eq!(run(&program).status.code(), Some(77));
    let program = compile(folder.path(), "int main(void) { return 5; }", &[]);
    let output = run(&program);
    assert_eq!(
        (output.status.code(), stderr(&output).as_str()),
        (Some(5), "")
    );
}

#[test]
fn a_signal_and_a_missing_program_are_seen_as_without_reports() {
    let mut command = flagstone();
    command.args(["run", "--reports", "sh", "-c", "kill -15 $$"]);
    assert_eq!(command.output().unwrap().status.signal(), Some(15));
    let mut command = flagstone();
    command.args(["run", "--reports", "no-such-program"]);
    assert_eq!(command.output().unwrap().status.code(), Some(127));
}

#[test]
fn a_signal_sent_to_the_command_reaches_the_program() {
    let mut command = flagstone();
    command
        .args([
            "run",
            "--reports",
            "sh",
            "-c",
            "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done",
        ])
        .stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stdout.as_mut().unwrap()),
        &mut line,
    )
    .unwrap();
    let status = Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn reports_are_written_as_json_too() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), DOUBLE_FREE, &["-O1"]);
    let file = folder.path().join("reports.json");
    let mut command = flagstone();
    command
        .args(["run", "--json-reports"])
        .arg(&file)
        .arg("--")
        .arg(&program);
    let output = command.output().unwrap();
    assert!(stderr(&output).contains("double free of 0x"));
    let text = fs::read_to_string(&file).unwrap();
    let report: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
    assert_eq!(report["bug"], "double free");
    let frame = &report["stack"][0];
    assert_eq!(
        (&frame["function"], &frame["line"]),
        (&"release".into(), &4.into())
    );
    assert_eq!(frame["module"], program.to_str().unwrap());
}

#[test]
fn a_child_reports_as_well_and_the_folder_goes() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), DOUBLE_FREE, &["-O1"]);
    let mut command = flagstone();
    command
        .args([
            "run",
            "--reports",
            "sh",
            "-c",
            "$0; $0; echo $FLAGSTONE_REPORTS",
        ])
        .arg(&program);
    let output = command.output().unwrap();
    assert_eq!(stderr(&output).matches("double free of").count(), 2);
    let spool = String::from_utf8(output.stdout).unwrap();
    assert!(!spool.trim().is_empty() && !Path::new(spool.trim()).exists());
}

#[test]
fn without_reports_the_message_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), DOUBLE_FREE, &["-O1"]);
    let output = flagstone()
        .args(["run", "--"])
        .arg(&program)
        .output()
        .unwrap();
    assert_eq!(
        golden(&stderr(&output), &program),
        "flagstone: error: double free of #: object is already free (cache malloc-112)\n"
    );
}

#[test]
fn debug_information_apart_is_found_by_its_link() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), DOUBLE_FREE, &["-O0"]);
    for arguments in [
        &["--only-keep-debug", "program", "program.debug"][..],
        &[
            "--strip-all",
            "--add-gnu-debuglink=program.debug",
            "program",
        ],
    ] {
        let status = Command::new("objcopy")
            .args(arguments)
            .current_dir(folder.path())
            .status()
            .unwrap();
        assert!(status.success());
    }
    let mut command = flagstone();
    command.args(["run", "--reports", "--"]).arg(&program);
    let text = stderr(&command.output().unwrap());
    assert!(
        text.contains("/program.c:4 (") && text.contains(" release "),
        "{text}"
    );
}

#[test]
fn a_saved_report_is_told_by_the_filter() {
    let folder = tempfile::tempdir().unwrap();
    let source = "namespace a { struct B { int f(int x) { return x + 1; } }; }
int main(int n, char **) { a::B b; return b.f(n); }
";
    let (file, program) = (folder.path().join("p.cc"), folder.path().join("p"));
    fs::write(&file, source).unwrap();
    let status = Command::new("g++")
        .arg("-g")
        .arg(&file)
        .arg("-o")
        .arg(&program)
        .status();
    assert!(status.unwrap().success());
    let symbols = Command::new("nm").arg(&program).output().unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let line = symbols
        .lines()
        .find(|line| line.ends_with("_ZN1a1B1fEi"))
        .unwrap();
    let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap() + 1;
    let report = folder.path().join("report.txt");
    fs::write(
        &report,
        format!("BUG\n 0x1 ({}+{address:#x})\n", program.display()),
    )
    .unwrap();
    let output = flagstone().arg("symbolize").arg(&report).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("BUG\n a::B::f(int) ") && text.contains("p.cc:1 ("),
        "{text}"
    );
}
