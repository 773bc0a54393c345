use std::io::Read as _;

use serde_json::{Value, json};

use super::*;

fn sample() -> Image {
    Image::new("docker.io/library/sample:1", "amd64")
        .file("bin/busybox", 0o755, *b"program")
        .symlink("bin/sh", "busybox")
        .entrypoint(&["/bin/busybox"])
        .cmd(&["sh", "-c", "true"])
        .env("PATH", "/bin")
        .user("65532:65532")
        .label("b", "2")
        .label("a", "1")
}

/// Files of a tar by path.
fn files(tar: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut archive = tar::Archive::new(tar);
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        (entry.path().unwrap().display().to_string(), content)
    });
    entries.collect()
}

/// The blob of a descriptor, its digest and size checked.
fn blob<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
    let name = descriptor["digest"].as_str().unwrap();
    let content = &files[&format!("blobs/{}", name.replace(':', "/"))];
    assert_eq!(digest(content), name);
    assert_eq!(descriptor["size"], content.len());
    content
}

fn parse(content: &[u8]) -> Value {
    serde_json::from_slice(content).unwrap()
}

#[test]
fn equal_input_gives_equal_bytes() {
    let reordered = Image::new("docker.io/library/sample:1", "amd64")
        .label("a", "1")
        .label("b", "2")
        .user("65532:65532")
        .env("PATH", "/bin")
        .symlink("/bin/sh", "busybox")
        .file("/bin/busybox", 0o755, *b"program")
        .cmd(&["sh", "-c", "true"])
        .entrypoint(&["/bin/busybox"]);
    assert_eq!(reordered.pack().unwrap(), sample().pack().unwrap());
    assert_eq!(reordered.gzip().pack().unwrap(), sample().gzip().pack().unwrap());
}

#[test]
fn another_content_gives_another_digest() {
    let other = sample().file("bin/busybox", 0o755, *b"Program");
    assert_ne!(other.pack().unwrap().digest, sample().pack().unwrap().digest);
}

#[test]
fn every_digest_and_size_from_the_index_down_is_right() {
    for (image, media_type) in [(sample(), LAYER), (sample().gzip(), LAYER_GZIP)] {
        let packed = image.pack().unwrap();
        let files = files(&packed.archive);
        assert_eq!(files.len(), 5, "three blobs, the index, the layout");
        assert_eq!(parse(&files["oci-layout"]), json!({"imageLayoutVersion": "1.0.0"}));

        let index = parse(&files["index.json"]);
        let named = &index["manifests"][0];
        assert_eq!(named["digest"], packed.digest);
        assert_eq!(named["annotations"]["io.containerd.image.name"], "docker.io/library/sample:1");
        assert_eq!(named["platform"], json!({"architecture": "amd64", "os": "linux"}));

        let manifest = parse(blob(&files, named));
        let config = parse(blob(&files, &manifest["config"]));
        let layer = blob(&files, &manifest["layers"][0]);
        assert_eq!(manifest["layers"][0]["mediaType"], media_type);

        let tar = if media_type == LAYER { layer.to_vec() } else { gunzip(layer) };
        assert_eq!(config["rootfs"]["diff_ids"], json!([digest(&tar)]));
        assert_eq!(self::files(&tar)["bin/busybox"], b"program");
    }
}

fn gunzip(content: &[u8]) -> Vec<u8> {
    let mut tar = Vec::new();
    flate2::read::GzDecoder::new(content).read_to_end(&mut tar).unwrap();
    tar
}

#[test]
fn the_configuration_says_what_runs() {
    let packed = sample().pack().unwrap();
    let files = files(&packed.archive);
    let manifest = parse(blob(&files, &parse(&files["index.json"])["manifests"][0]));
    assert_eq!(
        parse(blob(&files, &manifest["config"]))["config"],
        json!({
            "User": "65532:65532",
            "Env": ["PATH=/bin"],
            "Entrypoint": ["/bin/busybox"],
            "Cmd": ["sh", "-c", "true"],
            "Labels": {"a": "1", "b": "2"},
        })
    );
}
