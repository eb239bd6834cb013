package cis

import (
	"path/filepath"
	"strings"

	"berth/internal/cis"
)

const (
	inProcess = "no such file: the controllers and the scheduler are parts of the server, not pods"
	noStore   = "no such file: the store is a part of the server, not a pod"
	onNodes   = "the control server runs no pods: berth check --cis reports this control on each node"
	noClient  = "no such file: the credentials of controllers and the scheduler exist only in memory"
)

// fileChecks returns the checks of section 1.1.
func fileChecks() map[string]check {
	return map[string]check{
		"1.1.1": configModes, "1.1.2": configOwners,
		"1.1.3": absent(inProcess), "1.1.4": absent(inProcess),
		"1.1.5": absent(inProcess), "1.1.6": absent(inProcess),
		"1.1.7": etcdPod, "1.1.8": etcdPod,
		"1.1.9": absent(onNodes), "1.1.10": absent(onNodes),
		"1.1.11": ofFiles(storeMode), "1.1.12": ofFiles(storeOwner),
		"1.1.13": ofFiles(func(f *Facts) cis.Finding { return cis.CheckModes(f.kubeconfigs(), ownerOnly) }),
		"1.1.14": ofFiles(func(f *Facts) cis.Finding {
			return cis.CheckOwners(f.kubeconfigs(), f.Files.DataDir.UID)
		}),
		"1.1.15": absent(noClient), "1.1.16": absent(noClient), "1.1.17": absent(noClient), "1.1.18": absent(noClient),
		"1.1.19": ofFiles(func(f *Facts) cis.Finding { return cis.CheckOwners(f.Files.PKI, f.Files.DataDir.UID) }),
		"1.1.20": ofFiles(func(f *Facts) cis.Finding { return cis.CheckModes(f.pki(isCertificate), worldRead) }),
		"1.1.21": ofFiles(func(f *Facts) cis.Finding { return cis.CheckModes(f.pki(isKey), ownerOnly) }),
	}
}

func (f *Facts) kubeconfigs() []cis.File { return []cis.File{f.Files.Admin, f.Files.SuperAdmin} }

// pki returns the regular files in the directory of certificates that match.
func (f *Facts) pki(match func(name string) bool) (out []cis.File) {
	for _, file := range f.Files.PKI {
		if match(filepath.Base(file.Path)) {
			out = append(out, file)
		}
	}
	return out
}

func isCertificate(name string) bool { return strings.HasSuffix(name, certSuffix) }

// isKey includes the file with the keys of the encryption at rest.
func isKey(name string) bool { return strings.HasSuffix(name, keySuffix) || name == encryptionFile }

// encryptionFile is the EncryptionConfiguration that the server creates.
const encryptionFile = "encryption.yaml"

// configFiles returns the files that correspond to the pod specification of the API server.
func (f *Facts) configFiles() []cis.File {
	files := f.Files.Units
	if f.Files.Config.Path != "" {
		files = append([]cis.File{f.Files.Config}, files...)
	}
	return files
}

const noConfig = "no unit and no configuration file: the settings are flags"

func configModes(f *Facts) cis.Finding {
	if len(f.configFiles()) == 0 {
		return cis.Absent(noConfig)
	}
	if f.Files.Config.Path != "" {
		if found := cis.CheckModes([]cis.File{f.Files.Config}, ownerOnly); found.Verdict != cis.Pass {
			return found
		}
	}
	found := cis.CheckModes(f.Files.Units, ownerOnly)
	if found.Verdict == cis.Fail {
		return cis.UnitModes(f.Files.Units)
	}
	return cis.CheckModes(f.configFiles(), ownerOnly)
}

func configOwners(f *Facts) cis.Finding {
	if len(f.configFiles()) == 0 {
		return cis.Absent(noConfig)
	}
	return cis.CheckOwners(f.configFiles(), f.Files.DataDir.UID)
}

func etcdPod(f *Facts) cis.Finding {
	if f.external() {
		return cis.ToReview("check the control on the hosts of the etcd cluster", "external etcd cluster")
	}
	return cis.Absent(noStore)
}

func storeMode(f *Facts) cis.Finding {
	if f.external() {
		return etcdPod(f)
	}
	return cis.CheckModes([]cis.File{f.Files.Store}, ownerDir)
}

func storeOwner(f *Facts) cis.Finding {
	if f.external() {
		return etcdPod(f)
	}
	found := cis.CheckOwners([]cis.File{f.Files.Store}, f.Files.DataDir.UID)
	if found.Verdict == cis.Pass {
		return cis.Deviation("%s, the user of the server: the store is a part of its process and there is no user etcd",
			found.Evidence)
	}
	return found
}
