"""The same agent on AgentScope 2.x: its chat model too holds the client that it calls in `client`."""

import openai
from agentscope.agent import Agent, ReActConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.tool import Toolkit


class AgentScopeReActAgent:
    def __init__(
        self,
        openai_client: openai.AsyncOpenAI,  # provided by ASTune
        model_name: str,
        system_prompt: str,
        toolkit: Toolkit,
        max_iters: int,
        **options,
    ):
        """Initialize the AgentScope ReAct agent with specified tools and model.

        Args:
            openai_client (openai.AsyncOpenAI): An instance of AsyncOpenAI client.
            options: Further arguments of AgentScope's agent.
        """
        self.agent_model = OpenAIChatModel(
            credential=OpenAICredential(api_key="EMPTY"),
            model=model_name,
            stream=False,
            max_retries=0,  # a call that is repeated would be a turn of its own
        )
        # patch the OpenAIChatModel to use the openai_client provided by ASTune
        self.agent_model.client = openai_client
        self.agent = Agent(
            name="react_agent",
            model=self.agent_model,
            system_prompt=system_prompt,
            toolkit=toolkit,
            react_config=ReActConfig(max_iters=max_iters),
            **options,
        )

    async def reply(self, query):
        """Generate a response based on the query."""
        # no need to modify your agent logic
        return await self.agent.reply(UserMsg(name="user", content=query))
