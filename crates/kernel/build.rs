//! Tells the linker how to make the image: no C library, no start files, our layout.

fn main() {
    println!("cargo:rerun-if-changed=image.ld");
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_IMAGE").is_none() {
        return;
    }
    let Some(dir) = std::env::var_os("CARGO_MANIFEST_DIR") else {
        return;
    };
    let script = std::path::Path::new(&dir).join("image.ld");
    let options = [
        "-nostdlib",
        "-nostartfiles",
        "-static",
        "-no-pie",
        "-Wl,--gc-sections",
        "-Wl,--build-id=none",
        "-Wl,-z,noexecstack",
        "-Wl,-z,max-page-size=0x1000",
    ];
    for option in options {
        println!("cargo:rustc-link-arg-bin=flagstone-kernel={option}");
    }
    println!(
        "cargo:rustc-link-arg-bin=flagstone-kernel=-Wl,-T,{}",
        script.display()
    );
}
