package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"berth/control"
)

// serverOptions is where a server on this host has its data, as its configuration file or a
// flag says.
type serverOptions struct {
	config control.Config
	file   string
}

func (p *serverOptions) flags(cmd *cobra.Command) {
	p.config = control.Default()
	cmd.Flags().StringVar(&p.config.DataDir, "data-dir", p.config.DataDir, "data directory of the server; by default as the configuration file says")
	cmd.Flags().StringVar(&p.file, "config", configFile, "configuration file of the server")
}

// loadConfigFile takes in the configuration file. One that nobody has named may not be there.
func (p *serverOptions) loadConfigFile(cmd *cobra.Command) error {
	f, err := control.ReadConfigFile(p.file)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !cmd.Flags().Changed("config"):
		p.file = ""
		return nil
	case err != nil:
		return err
	}
	f.ApplyTo(&p.config, cmd.Flags().Changed)
	return nil
}

func backupCommand() *cobra.Command {
	p := &serverOptions{}
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write all that a server needs to begin anew into one file, while it runs",
		Long: `Write the store as it is at one moment, the authority and all keys (pki/), and the configuration file into one archive, on the
server's host. The server may run, or not. FILE is there only when it is whole, and replaces an older one of its name.

Whoever has the file has the cluster: the keys are in it, and by them every secret. Its mode is 0600; keep it as safe as the host.

Objects that are in an etcd cluster of your own (--etcd-servers) are saved with etcd's tools; copy pki/ beside.`,
		Example: `  berth-control backup /var/backups/berth-control-$(date +%F).zip`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.loadConfigFile(cmd); err != nil {
				return err
			}
			p.config.Version, p.config.Log = version, newLog(false)
			if err := control.Backup(cmd.Context(), p.config, p.file, args[0]); err != nil {
				return err
			}
			info, err := os.Stat(args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d KiB, the store, keys and configuration of %s\n", args[0], (info.Size()+1023)>>10, p.config.DataDir)
			return err
		},
	}
	p.flags(cmd)
	cmd.Flags().StringVar(&p.config.EncryptionConfig, "encryption-provider-config", "", "file of kind EncryptionConfiguration that serve is given, if that is not in the configuration file")
	return cmd
}

func restoreCommand() *cobra.Command {
	p := &serverOptions{}
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a server's data directory of a backup",
		Long: `Make the data directory of a backup, on this host or another. The server must not run on it, and it must hold no store and no
keys: move it away before. Then start the server: it goes on from where the backup was made.

Nodes that had joined go on by themselves, if they reach the server under the name or address of before; pods that the backup has
are not restarted. What was made after the backup is not there any more: such pods end, and such nodes register anew.`,
		Example: `  systemctl stop berth-control
  mv /var/lib/berth-control /var/lib/berth-control.old
  berth-control restore /var/backups/berth-control.zip
  systemctl start berth-control`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.loadConfigFile(cmd); err != nil {
				return err
			}
			if len(p.config.Etcd.Endpoints) > 0 && !cmd.Flags().Changed("data-dir") {
				return fmt.Errorf("restore: %s says that objects are in an etcd cluster: give --data-dir", p.file)
			}
			done, err := control.Restore(args[0], p.config)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if _, err := fmt.Fprintf(out, "%s is as it was at %s\n", p.config.DataDir, done.BackupTime.Format(time.RFC3339)); err != nil {
				return err
			}
			for _, was := range slices.Sorted(maps.Keys(done.SavedFiles)) {
				if err := reportSavedFile(was, done.SavedFiles[was], func(text string) error { _, err := fmt.Fprintln(out, text); return err }); err != nil {
					return err
				}
			}
			return nil
		},
	}
	p.flags(cmd)
	return cmd
}

// reportSavedFile says of a file from outside of the data directory what is to be done with
// it, or removes the copy of one that is there as it was.
func reportSavedFile(was, is string, say func(string) error) error {
	kept, err := os.ReadFile(is)
	if err != nil {
		return err
	}
	now, err := os.ReadFile(was)
	switch {
	case err == nil && string(now) == string(kept):
		return os.Remove(is)
	case err == nil:
		return say(was + " is not as it was then: " + is + " has that; compare them before the start")
	}
	return say(was + " is not there: " + filepath.Clean(is) + " is what it was then; put it there before the start")
}
