// Command nfpm writes a Debian package. It uses the library of nfpm without the other package
// formats.
//
//	nfpm DESCRIPTION PACKAGE.deb
//
// DESCRIPTION is an nfpm.yaml. Its file names are relative to the working directory, and variables
// such as $VERSION are read from the environment. SOURCE_DATE_EPOCH is the time of all files in the
// package.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: nfpm DESCRIPTION PACKAGE.deb")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "nfpm:", err)
		os.Exit(1)
	}
}

func write(description, to string) (err error) {
	config, err := nfpm.ParseFile(description)
	if err != nil {
		return err
	}
	info, err := config.Get("deb")
	if err != nil {
		return err
	}
	packager, err := nfpm.Get("deb")
	if err != nil {
		return err
	}
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(to)
		}
	}()
	return packager.Package(nfpm.WithDefaults(info), f)
}
