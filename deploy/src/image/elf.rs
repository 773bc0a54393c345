//! Whether a program runs in an image that has no other file: ELF without an interpreter.

/// elf.h
const PT_INTERP: u32 = 3;
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const HEADER_LEN: usize = 64;

/// Why a file is no static program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// Something else.
    #[error("not a 64-bit little-endian ELF file")]
    NotElf,
    /// The program headers are not where the file says.
    #[error("the ELF file is cut short")]
    Cut,
    /// It wants a dynamic loader, which the image does not have.
    #[error("the program is linked dynamically")]
    Dynamic,
}

/// Checks that `file` is a 64-bit ELF program that needs no dynamic loader.
///
/// # Errors
/// Says what it is instead.
pub fn check_static(file: &[u8]) -> Result<(), ElfError> {
    let magic = [0x7f, b'E', b'L', b'F', CLASS_64, LITTLE_ENDIAN];
    if !file.starts_with(&magic) || file.len() < HEADER_LEN {
        return Err(ElfError::NotElf);
    }
    match interpreted(file) {
        Some(false) => Ok(()),
        Some(true) => Err(ElfError::Dynamic),
        None => Err(ElfError::Cut),
    }
}

/// Whether a program header asks for an interpreter; none if they cannot be read.
fn interpreted(file: &[u8]) -> Option<bool> {
    // Elf64_Ehdr: e_phoff at 32, e_phentsize at 54, e_phnum at 56.
    let start = usize::try_from(u64::from_le_bytes(file.get(32..40)?.try_into().ok()?)).ok()?;
    let size = usize::from(u16::from_le_bytes(file.get(54..56)?.try_into().ok()?));
    let count = usize::from(u16::from_le_bytes(file.get(56..58)?.try_into().ok()?));
    let table = file.get(start..start.checked_add(size.checked_mul(count)?)?)?;
    let kinds: Option<Vec<u32>> = table
        .chunks(size.max(1))
        .map(|header| Some(u32::from_le_bytes(header.get(..4)?.try_into().ok()?)))
        .collect();
    kinds.filter(|kinds| !kinds.is_empty()).map(|kinds| kinds.contains(&PT_INTERP))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(kinds: &[u32]) -> Vec<u8> {
        let mut file = vec![0; HEADER_LEN];
        file[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        file[32] = 64;
        file[54] = 56;
        file[56] = u8::try_from(kinds.len()).unwrap();
        for kind in kinds {
            let mut header = [0; 56];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            file.extend(header);
        }
        file
    }

    #[test]
    fn a_program_without_an_interpreter_is_static() {
        assert_eq!(check_static(&elf(&[1, 2, 6])), Ok(()));
    }

    #[test]
    fn a_program_with_an_interpreter_is_not() {
        assert_eq!(check_static(&elf(&[6, 3, 1])), Err(ElfError::Dynamic));
    }

    #[test]
    fn a_cut_file_and_a_script_are_told_apart() {
        let whole = elf(&[1, 2]);
        assert_eq!(check_static(&whole[..whole.len() - 1]), Err(ElfError::Cut));
        assert_eq!(check_static(&elf(&[])), Err(ElfError::Cut));
        assert_eq!(check_static(b"#!/bin/sh\n"), Err(ElfError::NotElf));
    }

    #[test]
    fn this_test_is_itself_a_dynamic_program() {
        if cfg!(not(target_feature = "crt-static")) {
            let own = std::fs::read("/proc/self/exe").unwrap();
            assert_eq!(check_static(&own), Err(ElfError::Dynamic));
        }
    }
}
