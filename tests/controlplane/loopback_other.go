//go:build !linux

package main

import (
	"fmt"
	"os"
)

func loopback() {
	fmt.Fprintln(os.Stderr, "loopback: only Linux has network namespaces")
	os.Exit(1)
}
