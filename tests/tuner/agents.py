"""An agent of the installed AgentScope, as scripts for 1.x's tuner make it."""

from importlib import metadata

OF_1 = metadata.version("agentscope").startswith("1.")


def make_agent(model, prompt):
    if OF_1:
        from agentscope.agent import ReActAgent
        from agentscope.formatter import OpenAIChatFormatter

        agent = ReActAgent(name="solver", sys_prompt=prompt, model=model, formatter=OpenAIChatFormatter())
        agent.set_console_output_enabled(False)
        return agent
    from agentscope.agent import Agent

    from astune.workflow.agentscope import training_defaults

    return Agent(name="solver", system_prompt=prompt, model=model, **training_defaults())


async def ask_agent(model, prompt, question):
    """The message that an agent with this system prompt answers with."""
    agent = make_agent(model, prompt)
    if OF_1:
        from agentscope.message import Msg

        return await agent.reply(msg=Msg("user", question, role="user"))
    from agentscope.message import UserMsg

    return await agent.reply(UserMsg("user", question))


def chat_model(base_url, name, stream=False):
    """A model behind an API, as it is outside of any tuner."""
    from agentscope.model import OpenAIChatModel

    if OF_1:
        return OpenAIChatModel(name, api_key="none", client_kwargs={"base_url": base_url}, stream=stream)
    from agentscope.credential import OpenAICredential

    return OpenAIChatModel(credential=OpenAICredential(api_key="none", base_url=base_url), model=name, stream=stream)
