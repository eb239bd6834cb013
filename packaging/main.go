// Command packaging makes the Debian packages of berth and berth-control: make deb.
//
// It builds the programs for an architecture, has each write its manual, completion and configuration (package files),
// gathers what else belongs to a package, and has nfpm (the program in nfpm/) put it together as the nfpm.yaml in the
// package's folder says. One commit makes one package, byte for byte, wherever and whenever it is made with one release of Go.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var b build
	var archs, names string
	var committed int64
	flag.StringVar(&b.describe, "describe", "", "what git describe --tags --always --dirty says")
	flag.Int64Var(&committed, "time", 0, "when the commit was made, in seconds; every file's time")
	flag.StringVar(&b.ldflags, "ldflags", "", "for the programs")
	flag.StringVar(&b.out, "out", "dist", "folder of the packages")
	flag.StringVar(&archs, "arch", "amd64,arm64", "architectures")
	flag.StringVar(&names, "programs", "berth,berth-control", "programs that a package is made of")
	flag.Parse()
	b.committed = time.Unix(committed, 0).UTC()
	if err := b.all(ctx, strings.Split(names, ","), strings.Split(archs, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "packaging:", err)
		os.Exit(1)
	}
}
