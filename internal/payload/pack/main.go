// Command pack compresses one program for package payload, and writes the
// file's key beside it, to FILE.zst.key:
//
//	pack PROGRAM FILE.zst
package main

import (
	"fmt"
	"os"

	"github.com/klauspost/compress/zstd"

	"github.com/hutch-sandbox/hutch/internal/payload"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pack PROGRAM FILE.zst")
		os.Exit(2)
	}
	if err := pack(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func pack(src, dst string) error {
	data, err := os.ReadFile(src)
	if err != nil {
		return err
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBetterCompression))
	if err != nil {
		return err
	}
	packed := enc.EncodeAll(data, nil)
	if err := enc.Close(); err != nil {
		return err
	}
	if err := os.WriteFile(dst+".key", []byte(payload.KeyOf(packed)+"\n"), 0o644); err != nil {
		return err
	}
	return os.WriteFile(dst, packed, 0o644)
}
