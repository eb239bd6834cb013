package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"berth/nodeapi"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/remotecommand"
)

// cpOptions are the flags of cp.
type cpOptions struct {
	namespace, container string
	noPreserve           bool
}

func (c *factory) cp() *cobra.Command {
	var o cpOptions
	cmd := &cobra.Command{
		Use:   "cp FROM TO",
		Short: "Copy files and directories to and from a container",
		Long: `Copy a file or a directory between this host and a container. One of FROM and TO is a file in a
container: POD:PATH or NAMESPACE/POD:PATH. The container must contain the tar binary. Symbolic links
in a directory of the container are not copied, and no file is written outside TO.`,
		Example: `  berth cp ./site web:/usr/share/nginx/html
  berth cp kube-system/dns:/etc/coredns/Corefile ./Corefile -c dns`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, to := remoteOf(args[0]), remoteOf(args[1])
			switch {
			case (from.pod == "") == (to.pod == ""):
				return errors.New("one of FROM and TO must be POD:PATH and the other a local path")
			case from.path == "" || to.path == "":
				return errors.New("filepath can not be empty")
			case from.pod != "":
				return o.run(c, cmd, from, func(r *remote) error { return r.fetch(to.path) })
			default:
				return o.run(c, cmd, to, func(r *remote) error { return r.send(from.path) })
			}
		},
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			names, _ := c.completePods(cmd, nil, typed)
			for i := range names {
				names[i] += ":"
			}
			return names, cobra.ShellCompDirectiveNoSpace // can also be a local file
		},
	}
	namespaceFlag(cmd, &o.namespace)
	cmd.Flags().StringVarP(&o.container, "container", "c", "", "container name")
	cmd.Flags().
		BoolVar(&o.noPreserve, "no-preserve", false, "do not preserve file modes, owners and times in the container")
	for flag, f := range map[string]cobra.CompletionFunc{"namespace": c.completeNamespaces} {
		if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
			panic(err) // registered twice: a programming error
		}
	}
	return cmd
}

// place is a file: in a container if pod is set, else a local one.
type place struct{ pod, path string }

// remoteOf parses POD:PATH. An argument that starts like a path is a local file.
func remoteOf(arg string) place {
	if strings.HasPrefix(arg, ".") || strings.HasPrefix(arg, "/") || strings.HasPrefix(arg, "~") {
		return place{path: arg}
	}
	if pod, file, two := strings.Cut(arg, ":"); two {
		return place{pod: pod, path: file}
	}
	return place{path: arg}
}

func (o cpOptions) run(c *factory, cmd *cobra.Command, at place, do func(*remote) error) error {
	client, pod, container, err := c.dialContainer(cmd, o.namespace, at.pod, o.container)
	if err != nil {
		return err
	}
	defer client.Close()
	r := &remote{ctx: cmd.Context(), path: at.path, notes: cmd.ErrOrStderr(), noPreserve: o.noPreserve}
	r.exec = func(ctx context.Context, in io.Reader, out, errs io.Writer, command ...string) error {
		target, err := client.ExecURL(ctx, nodeapi.ExecRequest{
			Namespace: pod.Namespace, Pod: pod.Name, Container: container, Command: command, Stdin: in != nil,
		})
		if err != nil {
			return err
		}
		return stream(ctx, target, remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: errs})
	}
	return do(r)
}

// remote is a path in a container.
type remote struct {
	ctx        context.Context
	path       string
	notes      io.Writer
	noPreserve bool
	exec       func(ctx context.Context, in io.Reader, out, errs io.Writer, command ...string) error
}

// fetch copies the remote path to a local one.
func (r *remote) fetch(to string) error {
	clean := path.Clean(r.path)
	dir, base := path.Split(clean)
	if dir == "" {
		dir = "."
	}
	if base == "" || base == ".." { // the root directory, or a path that only the container can resolve
		dir, base = clean, "."
	}
	read, write := io.Pipe()
	var output bytes.Buffer
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(r.ctx)
	defer wg.Wait()
	defer cancel()
	var sent error
	wg.Go(func() {
		sent = r.exec(ctx, nil, write, &output, "tar", "-C", dir, "-cf", "-", "./"+base)
		_ = write.CloseWithError(sent)
	})
	err := unpack(read, base, to, r.notes)
	if err != nil {
		_ = read.CloseWithError(err)
		cancel()
	}
	wg.Wait()
	switch {
	case err != nil && (sent == nil || !errors.Is(err, sent)): // the local side failed, and tar was canceled
		return fmt.Errorf("copy %s to %s: %w", r.path, to, err)
	case sent != nil:
		return fmt.Errorf("copy %s: %w", r.path, tarError(sent, &output))
	}
	return nil
}

// send copies a local path to the remote one: into it if that is a directory, else under its name.
func (r *remote) send(from string) error {
	st, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if st.Mode().Type() == os.ModeSymlink { // a symbolic link given as an argument is followed
		if from, err = filepath.EvalSymlinks(from); err != nil {
			return err
		}
	}
	from = filepath.Clean(from)
	dir, name := path.Split(path.Clean(r.path))
	into, err := r.isDirectory()
	if err != nil {
		return err
	}
	if into || strings.HasSuffix(r.path, "/") {
		dir, name = r.path, filepath.Base(from)
		if name == "." || name == ".." || name == "/" {
			name = "."
		}
	}
	if dir == "" {
		dir = "."
	}
	read, write := io.Pipe()
	var output bytes.Buffer
	var wg sync.WaitGroup
	var packed error
	wg.Go(func() {
		packed = pack(write, from, name)
		_ = write.CloseWithError(packed)
	})
	command := []string{"tar", "-C", dir, "-xmf", "-"}
	if r.noPreserve {
		command = []string{"tar", "-C", dir, "--no-same-permissions", "--no-same-owner", "-xmf", "-"}
	}
	err = r.exec(r.ctx, read, io.Discard, &output, command...)
	_ = read.CloseWithError(errors.Join(err, io.ErrClosedPipe))
	wg.Wait()
	switch {
	case err != nil:
		return fmt.Errorf("copy to %s: %w", r.path, tarError(err, &output))
	case packed != nil:
		return fmt.Errorf("copy %s: %w", from, packed)
	}
	return nil
}

// isDirectory runs test -d in the container.
func (r *remote) isDirectory() (bool, error) {
	var output bytes.Buffer
	err := r.exec(r.ctx, nil, io.Discard, &output, "test", "-d", r.path)
	if exit, ok := errors.AsType[*ExitError](err); ok && exit.Code == 1 {
		return false, nil
	}
	if err != nil && r.ctx.Err() == nil && !errors.Is(err, context.Canceled) {
		if _, exit := errors.AsType[*ExitError](err); exit ||
			strings.Contains(err.Error(), "executable file not found") {
			return false, nil // no test binary: tar reports the problem
		}
	}
	return err == nil, err
}

// tarError adds the stderr of tar.
func tarError(err error, output *bytes.Buffer) error {
	if text := clean(strings.TrimSpace(output.String())); text != "" {
		if errors.Is(err, nodeapi.ErrStdinNotRead) { // tar has exited with an error message
			return errors.New(text)
		}
		err = fmt.Errorf("%s: %w", text, err)
	}
	if strings.Contains(err.Error(), "executable file not found") {
		err = fmt.Errorf("the container must contain the tar binary: %w", err)
	}
	if exit, ok := errors.AsType[*ExitError](err); ok { // the exit code of tar is not useful
		return errors.New(strings.TrimSuffix(strings.TrimSuffix(err.Error(), exit.Error()), ": "))
	}
	return err
}
