package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth/control"
	"berth/control/pki"
)

// clientOptions says how a command finds the running server.
type clientOptions struct{ dataDir, kubeconfig string }

func (r *clientOptions) flags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVar(&r.dataDir, "data-dir", control.Default().DataDir, "data directory of the server on this host")
	f.StringVar(&r.kubeconfig, "kubeconfig", "", "kubeconfig of an administrator; by default DATA-DIR/admin.kubeconfig")
}

func (r *clientOptions) client() (*kubernetes.Clientset, *restclient.Config, error) {
	path := r.kubeconfig
	if path == "" {
		path = filepath.Join(r.dataDir, "admin.kubeconfig")
	}
	c, err := clientcmd.BuildConfigFromFlags("", path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%s: is not there; has the server run, and is --data-dir right?", path)
	}
	if err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfig(c)
	return client, c, err
}

func kubeconfigCommand() *cobra.Command {
	var dataDir, server, name string
	var groups []string
	var valid time.Duration
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print a kubeconfig",
		Long: `Print a kubeconfig with a client certificate of its own, signed by the authority in the data directory. Without --user it is the
administrator's, who may do everything. A certificate cannot be taken back before it expires: keep --valid short for others.`,
		Args: cobra.NoArgs,
		Example: `  berth-control kubeconfig --server https://control.example.com:6443 > ~/.kube/config
  berth-control kubeconfig --user jane --group developers --valid 720h`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pkiDir := filepath.Join(dataDir, "pki")
			if _, err := os.Stat(filepath.Join(pkiDir, "ca.key")); err != nil {
				return fmt.Errorf("data-dir: %s holds no authority; has the server run? %w", dataDir, err)
			}
			authority, err := pki.Open(pkiDir, time.Now)
			if err != nil {
				return err
			}
			if server == "" {
				c, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dataDir, "admin.kubeconfig"))
				if err != nil {
					return fmt.Errorf("server: must be given: %w", err)
				}
				server = c.Host
			}
			subject := pki.AdminSubject()
			if name != "" {
				subject.Name, subject.Groups = name, groups
			} else if len(groups) > 0 {
				return errors.New("group: is for a --user only")
			}
			subject.Duration = valid
			cert, key, err := authority.Issue(subject)
			if err != nil {
				return err
			}
			text, err := authority.Kubeconfig(server, subject.Name, cert, key)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&dataDir, "data-dir", control.Default().DataDir, "data directory of the server")
	f.StringVar(&server, "server", "", "URL of the server as its users reach it; by default as in admin.kubeconfig")
	f.StringVar(&name, "user", "", "name of the user; by default the administrator")
	f.StringSliceVar(&groups, "group", nil, "group of the user")
	f.DurationVar(&valid, "valid", 365*24*time.Hour, "for how long the certificate is valid")
	return cmd
}
