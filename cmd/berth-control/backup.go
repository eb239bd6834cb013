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

// serverOptions locates the data and the configuration of the server on this host. A flag takes
// precedence over the configuration file.
type serverOptions struct {
	config control.Config
	file   string
}

func (p *serverOptions) flags(cmd *cobra.Command) {
	p.config = control.Default()
	cmd.Flags().
		StringVar(&p.config.DataDir, "data-dir", p.config.DataDir,
			"data directory of the server (default: from the configuration file)")
	cmd.Flags().StringVar(&p.file, "config", configFile, "configuration file of the server")
}

// loadConfigFile applies the configuration file. A missing file is an error only when --config
// names it.
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
		Short: "Back up the store, keys and configuration of the server to one file",
		Long: `Write a consistent snapshot of the store, the certificate authority and all keys (pki/), and the
configuration file to one archive on the server's host. The server may be running or stopped. FILE appears only when
it is complete, and replaces an existing file of that name.

The archive contains the keys of the cluster and every Secret. Its mode is 0600. Protect it like the host.

Objects in an external etcd cluster (--etcd-servers) are not included: back up etcd with its own tools, and copy pki/.`,
		Example: `  berth-control backup /var/backups/berth-control-$(date +%F).zip`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.loadConfigFile(cmd); err != nil {
				return err
			}
			p.config.Version, p.config.Log = version, newLog(0)
			if err := control.Backup(cmd.Context(), p.config, p.file, args[0]); err != nil {
				return err
			}
			info, err := os.Stat(args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(
				cmd.OutOrStdout(),
				"%s: %d KiB: store, keys and configuration of %s\n",
				args[0],
				(info.Size()+1023)>>10,
				p.config.DataDir,
			)
			return err
		},
	}
	p.flags(cmd)
	cmd.Flags().
		StringVar(&p.config.EncryptionConfig, "encryption-provider-config", "",
			"EncryptionConfiguration file passed to serve, if it is not set in the configuration file")
	return cmd
}

func restoreCommand() *cobra.Command {
	p := &serverOptions{}
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Create a server's data directory from a backup",
		Long: `Create the data directory from a backup, on this host or another. The server must not be running on it,
and it must contain no store and no keys: move an existing one away first. Then start the server. It continues with
the state of the backup.

Nodes that had joined reconnect if they reach the server under the same name or address. Pods that are in the
backup are not restarted. Objects created after the backup are lost: such pods are stopped, and such nodes
register again.`,
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
				return fmt.Errorf("restore: %s configures an etcd cluster: use --data-dir", p.file)
			}
			done, err := control.Restore(args[0], p.config)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if _, err := fmt.Fprintf(out, "%s restored to its state at %s\n", p.config.DataDir,
				done.BackupTime.Format(time.RFC3339)); err != nil {
				return err
			}
			for _, original := range slices.Sorted(maps.Keys(done.SavedFiles)) {
				if err := reportSavedFile(original, done.SavedFiles[original],
					func(text string) error { _, err := fmt.Fprintln(out, text); return err }); err != nil {
					return err
				}
			}
			return nil
		},
	}
	p.flags(cmd)
	return cmd
}

// reportSavedFile prints what to do with a file that the backup took from outside the data
// directory. It removes the restored copy if the original file still has the same content.
func reportSavedFile(original, saved string, printLine func(string) error) error {
	copied, err := os.ReadFile(saved)
	if err != nil {
		return err
	}
	current, err := os.ReadFile(original)
	switch {
	case err == nil && string(current) == string(copied):
		return os.Remove(saved)
	case err == nil:
		return printLine(
			original + " has changed since the backup: " + saved +
				" is the saved copy; compare them before starting the server",
		)
	}
	return printLine(
		original + " does not exist: " + filepath.Clean(saved) +
			" is the saved copy; move it there before starting the server",
	)
}
