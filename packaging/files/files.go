package files

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Command returns the hidden command that writes the files of the program to a directory: man/,
// completion/ and config.yaml. Their time is SOURCE_DATE_EPOCH from the environment.
func Command(config string) *cobra.Command {
	return &cobra.Command{
		Use: "packaging-files DIR", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
			if err != nil {
				return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
			}
			if err := manual(cmd.Root(), filepath.Join(args[0], "man"), time.Unix(epoch, 0).UTC()); err != nil {
				return fmt.Errorf("manual: %w", err)
			}
			if err := completion(cmd.Root(), filepath.Join(args[0], "completion")); err != nil {
				return fmt.Errorf("completion: %w", err)
			}
			return os.WriteFile(filepath.Join(args[0], "config.yaml"), []byte(config), 0o600)
		},
	}
}

// manual writes a compressed page for each command, without timestamps.
func manual(root *cobra.Command, dir string, date time.Time) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root.DisableAutoGenTag = true
	header := &doc.GenManHeader{Section: "1", Date: &date, Source: root.Name() + " " + root.Version,
		Manual: root.Name()}
	opts := doc.GenManTreeOptions{Header: header, Path: dir, CommandSeparator: "-"}
	if err := doc.GenManTreeFromOpts(root, opts); err != nil {
		return err
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil {
		return err
	}
	for _, page := range pages {
		if err := compress(page); err != nil {
			return err
		}
	}
	return nil
}

// compress replaces a file by its NAME.gz.
func compress(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(text); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	if err := os.WriteFile(name+".gz", out.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Remove(name)
}

// completion writes the completion files with the names that each shell expects.
func completion(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name := root.Name()
	if err := root.GenBashCompletionFileV2(filepath.Join(dir, name), true); err != nil {
		return err
	}
	if err := root.GenZshCompletionFile(filepath.Join(dir, "_"+name)); err != nil {
		return err
	}
	return root.GenFishCompletionFile(filepath.Join(dir, name+".fish"), true)
}
