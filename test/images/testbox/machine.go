package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// allocated is the memory of step alloc.
var allocated [][]byte

func alloc(a []string) error {
	debug.SetGCPercent(-1)
	for range number(arg(a, 0, "1")) {
		mib, err := syscall.Mmap(-1, 0, 1<<20, syscall.PROT_READ|syscall.PROT_WRITE,
			syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			return err
		}
		for i := 0; i < len(mib); i += os.Getpagesize() {
			mib[i] = 1
		}
		allocated = append(allocated, mib)
	}
	fmt.Println("allocated", len(allocated), "MiB")
	return nil
}

func spin(a []string) error {
	end := time.Now().Add(100 * 365 * 24 * time.Hour)
	if len(a) > 0 {
		d, err := time.ParseDuration(a[0])
		if err != nil {
			return err
		}
		end = time.Now().Add(d)
	}
	for time.Now().Before(end) {
	}
	return nil
}

func fork(a []string) error {
	for range number(arg(a, 0, "1")) {
		cmd := exec.Command("/proc/self/exe", "exit", "0")
		if err := cmd.Start(); err != nil {
			return err
		}
	}
	return nil
}

func threads(a []string) error {
	n := number(arg(a, 0, "1"))
	debug.SetMaxThreads(int(n) + 1000)
	ready := make(chan struct{})
	for range n {
		go func() {
			runtime.LockOSThread()
			ready <- struct{}{}
			select {}
		}()
		<-ready
	}
	fmt.Println("threads", n)
	return nil
}

// opened are the files of step open.
var opened []*os.File

func open(a []string) error {
	for range number(arg(a, 0, "1")) {
		f, err := os.Open("/")
		if err != nil {
			return err
		}
		opened = append(opened, f)
	}
	fmt.Println("opened", len(opened))
	return nil
}

func env(a []string) error {
	if len(a) > 0 {
		v, ok := os.LookupEnv(a[0])
		if !ok {
			return fmt.Errorf("%s is not set", a[0])
		}
		fmt.Println(v)
		return nil
	}
	vars := os.Environ()
	slices.Sort(vars)
	fmt.Println(strings.Join(vars, "\n"))
	return nil
}

func id([]string) error {
	groups, err := syscall.Getgroups()
	slices.Sort(groups)
	fmt.Printf("uid=%d gid=%d groups=%s\n", syscall.Getuid(), syscall.Getgid(), strings.Trim(fmt.Sprint(groups), "[]"))
	return err
}

func namespaces([]string) error {
	names, err := filepath.Glob("/proc/self/ns/*")
	for _, n := range names {
		target, err := os.Readlink(n)
		if err != nil {
			return err
		}
		fmt.Println(filepath.Base(n), target)
	}
	return err
}

func addrs([]string) error {
	as, err := net.InterfaceAddrs()
	for _, a := range as {
		fmt.Println(a)
	}
	return err
}

// tty prints whether stdin is a terminal, and its size.
func tty([]string) error {
	var size struct{ Rows, Cols, X, Y uint16 }
	_, _, e := syscall.Syscall(syscall.SYS_IOCTL, os.Stdin.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
	if e != 0 {
		fmt.Println("no tty")
		return nil //nolint:nilerr // not a terminal: a valid result
	}
	fmt.Printf("tty %d rows %d columns\n", size.Rows, size.Cols)
	return nil
}
