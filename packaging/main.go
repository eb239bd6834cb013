// Command packaging builds the Debian packages of berth and berth-control: make deb.
//
// It builds the programs for each architecture, lets each program write its manual pages, shell
// completion and default configuration (package files), collects the other files of the package,
// and runs nfpm (the program in nfpm/) with the nfpm.yaml in the package's directory. The packages
// of a commit are reproducible byte for byte with the same release of Go.
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
	flag.StringVar(&b.describe, "describe", "", "output of git describe --tags --always --dirty")
	flag.Int64Var(&committed, "time", 0, "commit time in seconds since the epoch, used for all files")
	flag.StringVar(&b.ldflags, "ldflags", "", "linker flags of the programs")
	flag.StringVar(&b.tags, "tags", "", "build tags of the programs")
	flag.StringVar(&b.out, "out", "dist", "output directory")
	flag.StringVar(&archs, "arch", "amd64,arm64", "architectures")
	flag.StringVar(&names, "programs", "berth,berth-control", "programs to package")
	flag.Parse()
	b.committed = time.Unix(committed, 0).UTC()
	if err := b.all(ctx, strings.Split(names, ","), strings.Split(archs, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "packaging:", err)
		os.Exit(1)
	}
}
