package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's metrics, as the released binaries have them
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserverapp "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanagerapp "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	schedulerapp "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func etcd() {
	etcdmain.Main(os.Args)
}

func apiserver() {
	os.Exit(cli.Run(apiserverapp.NewAPIServerCommand()))
}

func controllerManager() {
	os.Exit(cli.Run(controllermanagerapp.NewControllerManagerCommand()))
}

func scheduler() {
	os.Exit(cli.Run(schedulerapp.NewSchedulerCommand()))
}

func kubectl() {
	_, _ = logs.GlogSetter(kubectlcmd.GetLogVerbosity(os.Args)) // a wrong level is reported by the flag parsing below
	if err := cli.RunNoErrOutput(kubectlcmd.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
}
