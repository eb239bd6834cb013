// Verdict runs go test and prints of its output what somebody reads who wants to
// know what failed and why: the runner's own lines, and of each failure the start
// of every message. All of it goes to a file. It exits as go test did.
//
//	go run ./test/verdict -all FILE go test …
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

func main() {
	all := flag.String("all", "test.log", "`file` for the whole output")
	flag.Parse()
	code, err := run(*all, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "verdict:", err)
		os.Exit(2)
	}
	os.Exit(code)
}

// run runs a command until it ends and returns its exit code.
func run(all string, args []string) (int, error) {
	if len(args) == 0 {
		return 0, errors.New("no command is named")
	}
	file, err := os.Create(all)
	if err != nil {
		return 0, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // go test passes it on
	cmd.Stdin = os.Stdin
	out, in, err := os.Pipe()
	if err != nil {
		return 0, errors.Join(err, file.Close())
	}
	cmd.Stdout, cmd.Stderr = in, in
	err = cmd.Start()
	if e := in.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = errors.Join(digest(os.Stdout, io.TeeReader(out, file)), ended(cmd.Wait()))
	}
	if err = errors.Join(err, out.Close(), file.Close()); err != nil {
		return 0, err
	}
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		fmt.Printf("all of the output is in %s\n", all)
		return max(code, 1), nil // -1: it was killed
	}
	return 0, nil
}

// ended is nil for a command that ran, however it ended.
func ended(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil
	}
	return err
}

// digest copies the lines that are to be read.
func digest(w io.Writer, r io.Reader) error {
	lines := bufio.NewReader(r)
	var d digester
	for {
		line, err := lines.ReadString('\n')
		if text, show := d.line(line); show {
			if _, err := io.WriteString(w, text); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
